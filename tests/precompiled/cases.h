// What the files of cases include, so that each need not compile it again. Each names what it uses all the same.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <mezzo/mezzo.h>
