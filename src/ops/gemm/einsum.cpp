// einsum(). An equation is parsed into labels of dimensions, and operands are multiplied from left to right
// by batched matrix products.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/op_observer.h"
#include "mezzo/product_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

using Labels = std::vector<int>;  // one per dimension: the letter, or 128 + i for the i-th last of "..."

constexpr int first_of_ellipsis = 128;

// An operand with the labels of its dimensions.
struct Term {
    Tensor x;
    Labels labels;
};

bool contains(const Labels& labels, int label) {
    return std::find(labels.begin(), labels.end(), label) != labels.end();
}
int place_of(const Labels& labels, int label) {
    return int(std::find(labels.begin(), labels.end(), label) - labels.begin());
}

// The labels of one side's term, with "..." standing for `covered` dimensions.
Labels read_term(std::string_view text, std::string_view equation, int covered) {
    Labels labels;
    bool dots = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '.') {
            check(!dots && text.substr(i, 3) == "...", ErrorKind::value, "einsum: a stray '.' in \"",
                  equation, "\"");
            for (int k = covered; k-- > 0;) labels.push_back(first_of_ellipsis + k);
            dots = true;
            i += 2;
            continue;
        }
        check((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'), ErrorKind::value, "einsum: '",
              text.substr(i, 1), "' in \"", equation, "\" is no letter");
        labels.push_back(c);
    }
    return labels;
}

std::vector<std::string_view> parts_of(std::string_view text) {
    std::vector<std::string_view> parts;
    for (;;) {
        const std::size_t comma = text.find(',');
        parts.push_back(text.substr(0, comma));
        if (comma == std::string_view::npos) return parts;
        text.remove_prefix(comma + 1);
    }
}

// Each letter's dimensions become one: the diagonal of the first and every other one with that letter.
Term without_repetitions(Term t) {
    for (std::size_t i = 0; i < t.labels.size(); ++i)
        for (std::size_t j = i + 1; j < t.labels.size();) {
            if (t.labels[i] != t.labels[j]) {
                ++j;
                continue;
            }
            const std::int64_t n = t.x.size(std::int64_t(i));
            check(t.x.size(std::int64_t(j)) == n, ErrorKind::shape, "einsum: '",
                  std::string(1, char(t.labels[i])), "' is both ", n, " and ", t.x.size(std::int64_t(j)),
                  " in ", t.x.shape());
            Axes order;
            for (int d = 0; d < t.x.dim(); ++d)
                if (d != int(i) && d != int(j)) order.push_back(d);
            order.push_back(std::int64_t(i));
            order.push_back(std::int64_t(j));
            Tensor moved = t.x.permute(order);
            moved = moved.flatten(-2).slice(-1, 0, n * n, n + 1);
            const int label = t.labels[i];
            t.labels.erase(t.labels.begin() + std::ptrdiff_t(j));
            t.labels.erase(t.labels.begin() + std::ptrdiff_t(i));
            t.labels.push_back(label);
            t.x = moved;
            i = 0;
            j = 1;
        }
    return t;
}

// The dimensions in the order of `labels`, all of which the term has.
Tensor ordered(const Term& t, const Labels& labels) {
    Axes order;
    for (const int label : labels) order.push_back(place_of(t.labels, label));
    return t.x.permute(order);
}

// Sums over the dimensions whose labels are not in `remaining`.
Term summed(Term t, const Labels& remaining) {
    Axes axes;
    Labels left;
    for (std::size_t i = 0; i < t.labels.size(); ++i)
        if (contains(remaining, t.labels[i]))
            left.push_back(t.labels[i]);
        else
            axes.push_back(std::int64_t(i));
    if (axes.empty()) return t;
    return {sum(t.x, axes), left};
}

// Drops dimensions of size 1 where the other operand has more: a product with it broadcasts.
Term without_stretched(Term t, const Term& other) {
    for (std::size_t i = t.labels.size(); i-- > 0;) {
        if (t.x.size(std::int64_t(i)) != 1 || !contains(other.labels, t.labels[i])) continue;
        if (other.x.size(place_of(other.labels, t.labels[i])) == 1) continue;
        t.x = t.x.squeeze(std::int64_t(i));
        t.labels.erase(t.labels.begin() + std::ptrdiff_t(i));
    }
    return t;
}

// The labels of a product by role: in both operands and in the result (batch), in both and summed (inner), in
// one only (left, right).
struct Roles {
    Labels batch, inner, left, right;
};
Roles roles_of(const Term& a, const Term& b, const Labels& remaining) {
    Roles roles;
    for (const int label : a.labels)
        (!contains(b.labels, label)   ? roles.left
         : contains(remaining, label) ? roles.batch
                                      : roles.inner)
            .push_back(label);
    for (const int label : b.labels)
        if (!contains(a.labels, label)) roles.right.push_back(label);
    return roles;
}

std::int64_t sizes_of(const Term& t, const Labels& labels, Shape* shape) {
    std::int64_t n = 1;
    for (const int label : labels) {
        const std::int64_t size = t.x.size(place_of(t.labels, label));
        n *= size;
        if (shape) shape->push_back(size);
    }
    return n;
}

Labels joined(const Labels& a, const Labels& b, const Labels& c) {
    Labels all = a;
    all.insert(all.end(), b.begin(), b.end());
    all.insert(all.end(), c.begin(), c.end());
    return all;
}

void check_sizes(const Term& a, const Term& b) {
    for (std::size_t i = 0; i < a.labels.size(); ++i) {
        if (!contains(b.labels, a.labels[i])) continue;
        const std::int64_t m = a.x.size(std::int64_t(i)), n = b.x.size(place_of(b.labels, a.labels[i]));
        const std::string name = a.labels[i] < first_of_ellipsis ? std::string(1, char(a.labels[i])) : "...";
        check(m == n || m == 1 || n == 1, ErrorKind::shape, "einsum: '", name, "' is ", m,
              " in one operand and ", n, " in another");
    }
}

// The product of a and b with everything summed that is not in `remaining`.
Term product(Term a, Term b, const Labels& remaining) {
    check_sizes(a, b);
    Term given_a = a;
    a = without_stretched(a, b);
    b = without_stretched(b, given_a);
    a = summed(a, joined(remaining, b.labels, {}));
    b = summed(b, joined(remaining, a.labels, {}));
    const Roles roles = roles_of(a, b, remaining);
    Shape shape;
    const std::int64_t batch = sizes_of(a, roles.batch, &shape);
    const std::int64_t m = sizes_of(a, roles.left, &shape), n = sizes_of(b, roles.right, &shape);
    const std::int64_t k = sizes_of(a, roles.inner, nullptr);
    Tensor left = ordered(a, joined(roles.batch, roles.left, roles.inner));
    Tensor right = ordered(b, joined(roles.batch, roles.inner, roles.right));
    const bool batched = !roles.batch.empty();
    left = left.reshape(batched ? Shape{batch, m, k} : Shape{m, k});
    right = right.reshape(batched ? Shape{batch, k, n} : Shape{k, n});
    return {matmul(left, right).reshape(shape), joined(roles.batch, roles.left, roles.right)};
}

// The number of dimensions that "..." stands for.
int covered_by_ellipsis(std::string_view text, const Tensor& x, std::string_view equation) {
    const bool dots = text.find('.') != std::string_view::npos;
    const int letters = int(text.size()) - (dots ? 3 : 0);
    check(dots ? x.dim() >= letters : x.dim() == letters, ErrorKind::shape, "einsum: \"", text, "\" of \"",
          equation, "\" does not fit an operand ", x.shape());
    return dots ? x.dim() - letters : 0;
}

// The labels of the result if the equation has no "->": the dimensions of "...", then letters that occur
// once, in alphabetical order.
Labels implied_result(const std::vector<Labels>& terms, int covered) {
    Labels result;
    for (int k = covered; k-- > 0;) result.push_back(first_of_ellipsis + k);
    for (int letter = 'A'; letter <= 'z'; ++letter) {
        std::ptrdiff_t times = 0;
        for (const Labels& labels : terms) times += std::count(labels.begin(), labels.end(), letter);
        if (times == 1) result.push_back(letter);
    }
    return result;
}

Labels explicit_result(std::string_view text, std::string_view equation, const std::vector<Labels>& terms,
                       int covered) {
    const Labels result = read_term(text, equation, covered);
    for (std::size_t i = 0; i < result.size(); ++i) {
        const bool known = std::any_of(terms.begin(), terms.end(),
                                       [&](const Labels& labels) { return contains(labels, result[i]); });
        const bool once = std::count(result.begin(), result.end(), result[i]) == 1;
        check(known && once, ErrorKind::value, "einsum: '", std::string(1, char(result[i])),
              "' of the result of \"", equation, "\" is ", known ? "there twice" : "in no operand");
    }
    return result;
}

struct Equation {
    std::vector<Labels> terms;
    Labels result;
};
Equation read_equation(std::string_view given, const Tensors& operands) {
    std::string text;
    for (const char c : given)
        if (c != ' ') text += c;
    const std::size_t arrow = text.find("->");
    const std::vector<std::string_view> parts = parts_of(std::string_view(text).substr(0, arrow));
    check(parts.size() == operands.size(), ErrorKind::value, "einsum: \"", given, "\" has ", parts.size(),
          " terms for ", operands.size(), " operands");
    Equation equation;
    int covered = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::string_view letters = parts[i];
        const std::size_t dot = letters.find('.');
        check(dot == letters.npos || letters.substr(dot, 3) == "...", ErrorKind::value,
              "einsum: a stray '.' in \"", given, "\"");
        const int own = covered_by_ellipsis(letters, operands[i], given);
        covered = std::max(covered, own);
        equation.terms.push_back(read_term(letters, given, own));
    }
    equation.result = arrow == std::string::npos ? implied_result(equation.terms, covered)
                                                 : explicit_result(std::string_view(text).substr(arrow + 2),
                                                                   given, equation.terms, covered);
    return equation;
}

}  // namespace

Tensor einsum(std::string_view text, const Tensors& operands) {
    const CompositeOp here("einsum");
    check(!operands.empty(), ErrorKind::value, "einsum: the list of operands is empty");
    for (const Tensor& x : operands) check_floating("einsum", x, "an operand");
    const Equation equation = read_equation(text, operands);
    Term all = without_repetitions({operands[0], equation.terms[0]});
    for (std::size_t i = 1; i < operands.size(); ++i) {
        Labels remaining = equation.result;
        for (std::size_t j = i + 1; j < operands.size(); ++j)
            remaining = joined(remaining, equation.terms[j], {});
        all = product(all, without_repetitions({operands[i], equation.terms[i]}), remaining);
    }
    const Tensor y = ordered(summed(all, equation.result), equation.result);
    if (operands.size() == 1) return y;  // nothing was multiplied
    return cast(y, autocast_dtype(CastPolicy::low, y));
}

}  // namespace mezzo
