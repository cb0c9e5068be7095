// Lets tests written for Catch2 version 2 compile with version 3.
#pragma once

#include <catch2/catch_all.hpp>

using Catch::Approx;
