#!/usr/bin/env python3
"""The opening comment of each public header has an example of its use, and the examples compile.

    header_examples_test.py SOURCE_ROOT -- COMPILER...          checks all headers, in one compilation if nothing is wrong
    header_examples_test.py SOURCE_ROOT --check -- COMPILER...  damages examples and expects that each damage is found

An example is the first paragraph of the opening comment whose lines begin with "//   " (three spaces): at most 5 lines, as
they stand in a function after `using namespace mezzo;`. Examples may use the variables of PREAMBLE: tensors with the usual
names, a model with its optimizer and scaler, a language model, train(), which stands for a whole training step, a loader, a
data set of encoded texts and a group of ranks. A result that must not be ignored counts as an error. The example of fmt.h is compiled
if the compiler finds {fmt}.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])
COMPILER = sys.argv[sys.argv.index("--") + 1:]
INCLUDE = ROOT / "include/mezzo"
# Parts of other headers, and headers that programs don't call on their own.
LEFT_OUT = {"callback.h", "cpp20.h", "data/batch_queue.h", "everything.h", "op_options.h", "shared.h"}
LINES = 5
PREAMBLE = """#include "mezzo/everything.h"
#if __has_include(<fmt/format.h>)
#include "mezzo/fmt.h"
#endif
#include <iostream>
using namespace mezzo;
namespace examples {
struct Texts {
    std::int64_t size() const;
    data::Encoding get(std::int64_t index) const;
};
extern Tensor x, y, labels, loss, weight, bias;
extern Tensor ids, mask;  // token ids, and true where a token is
extern nn::Sequential net;
extern nn::Gpt gpt;
extern optim::AdamW optimizer;
extern amp::GradScaler scaler;
Tensor train(const Tensor& x, const Tensor& labels);
extern data::DataLoader loader;
extern Texts texts;
extern distributed::Group group;
}
"""


def example(text):
    """The number of the example's first line, and its lines; no lines if the header has none."""
    opening = re.match(r"(?://.*\n)*", text).group()
    found = re.search(r"(?<=\n)//\n((?://   .*\n)+)", opening)
    if not found:
        return 0, []
    return opening.count("\n", 0, found.start(1)) + 1, [line[5:] for line in found[1].splitlines()]


def function(header, text):
    """The example in a function of its own; errors are reported for the header's own lines."""
    first, lines = example(text)
    name = re.sub(r"\W", "_", header)
    code = "\n".join([f"namespace examples::{name} {{", "void use() {", f'#line {first} "include/mezzo/{header}"', *lines, "}", "}"])
    return f"#if __has_include(<fmt/format.h>)\n{code}\n#endif\n" if header == "fmt.h" else code + "\n"


def compiler_errors(headers):
    """What the compiler says against the examples of these headers, "" if it compiles them."""
    code = PREAMBLE + "".join(function(header, text) for header, text in headers.items())
    run = subprocess.run([*COMPILER, "-std=c++20", "-fsyntax-only", "-Werror=unused-result", f"-I{ROOT / 'include'}", "-x", "c++", "-"],
                         input=code, text=True, capture_output=True, check=False)
    return "" if run.returncode == 0 else run.stderr or f"exit status {run.returncode}"


def not_compiling(headers):
    """The headers whose examples do not compile, each with the errors: halves that compile are left out."""
    errors = compiler_errors(headers)
    if not errors or len(headers) == 1:
        return {header: errors for header in headers if errors}
    names = list(headers)
    halves = [names[:len(names) // 2], names[len(names) // 2:]]
    return {name: text for half in halves for name, text in not_compiling({name: headers[name] for name in half}).items()}


def without_example(headers, left_out):
    """The headers that break the rule for what stands where, each with how."""
    found = {header: "is left out and does not exist" for header in left_out - set(headers)}
    for header, text in headers.items():
        count = len(example(text)[1])
        if header in left_out:
            found |= {header: "is left out and has an example"} if count else {}
        elif not 0 < count <= LINES:
            found[header] = f"its example has {count} lines, not 1 to {LINES}" if count else "has no example"
    return found


def wrong(headers, left_out):
    """What is wrong, by header."""
    found = without_example(headers, left_out)
    good = {header: text for header, text in headers.items() if header not in found and header not in left_out}
    if not compiler_errors(good):
        return found
    if errors := compiler_errors({}):
        return found | {"everything.h": f"it does not compile with the variables of the examples\n{errors}"}
    return found | not_compiling(good)


def check():
    """Damages copies of a header's text; exactly the damaged copies must be found, among sound headers."""
    sound = {name: (INCLUDE / name).read_text() for name in ("autocast.h", "error.h", "shared.h")}
    code = "".join(f"//   {line}\n" for line in example(sound["error.h"])[1])

    def damaged(old, new):
        assert old in sound["error.h"], old
        return sound["error.h"].replace(old, new, 1)

    damages = {
        "another name": damaged("ErrorKind::shape)", "ErrorKind::shapes)"),
        "a brace too many": damaged("//   } catch", "//   }} catch"),
        "a brace too few": damaged("//   } catch", "//   catch"),
        "a result ignored": damaged("//       y = net(x);", "//       net(x);"),
        "no example": damaged(f"//\n{code}", ""),
        "below #pragma once": damaged(f"//\n{code}#pragma once\n", f"#pragma once\n//\n{code}"),
        "no empty line above": damaged(f"//\n{code}", code),
        "too many lines": damaged(code, f"{code}//   y = x;\n"),
    }
    failures = 0
    for left_out, expected in (({"shared.h"}, set(damages)), ({"error.h", "shared.h"}, {"error.h"}), ({"absent.h", "shared.h"}, {"absent.h"})):
        headers = sound | damages if expected == set(damages) else sound
        found = set(wrong(headers, left_out))
        if found != expected:
            failures += 1
            print(f"FAILED: found {sorted(found - expected)}, not found {sorted(expected - found)}")
    print(f"{len(damages) + 2} damages")
    return failures


def main():
    if "--check" in sys.argv[2:sys.argv.index("--")]:
        return check()
    headers = {str(path.relative_to(INCLUDE)): path.read_text() for path in sorted(INCLUDE.rglob("*.h"))}
    found = wrong(headers, LEFT_OUT)
    for header, text in found.items():
        print(f"FAILED: include/mezzo/{header}: {text}")
    print(f"{len(headers)} headers, {len(LEFT_OUT)} left out, {len(found)} wrong")
    return len(found)


sys.exit(1 if main() else 0)
