"""Changes that digests of code once took for none: files before, and those of them that are others after."""

# A class whose sum has two private terms, the same with another name for one, and with exchanged names.
SUM = """\
class A:
    def go(self):
        return self._x() + self._y()

    def _x(self):
        return 1

    def _y(self):
        return 2


"""
RENAMED = SUM.replace("_x", "_z")
EXCHANGED = SUM.replace("_x", "_other").replace("_y", "_x").replace("_other", "_y")

TOLD_APART = {
    "getattr fstring": (
        {
            "lib/a.py": SUM
            + """\
def run(k):
    return getattr(A(), f'_{k}', len)()
""",
        },
        {
            "lib/a.py": EXCHANGED
            + """\
def run(k):
    return getattr(A(), f'_{k}', len)()
""",
        },
    ),
    "getattr plus": (
        {
            "lib/a.py": SUM
            + """\
def run(k):
    return getattr(A(), '_' + k, len)()
""",
        },
        {
            "lib/a.py": EXCHANGED
            + """\
def run(k):
    return getattr(A(), '_' + k, len)()
""",
        },
    ),
    "methodcaller": (
        {
            "lib/a.py": SUM
            + """\
import operator
def run(k):
    return operator.methodcaller('_%s' % k)(A())
""",
        },
        {
            "lib/a.py": EXCHANGED
            + """\
import operator
def run(k):
    return operator.methodcaller('_%s' % k)(A())
""",
        },
    ),
    "subclass lambda": (
        {
            "lib/a.py": SUM
            + """\
class D(A):
    _x = lambda self: 5

def run():
    return D().go()
""",
        },
        {
            "lib/a.py": RENAMED
            + """\
class D(A):
    _x = lambda self: 5

def run():
    return D().go()
""",
        },
    ),
    "subclass static": (
        {
            "lib/a.py": SUM
            + """\
class D(A):
    _x = staticmethod(len)

def run():
    return D().go()
""",
        },
        {
            "lib/a.py": RENAMED
            + """\
class D(A):
    _x = staticmethod(len)

def run():
    return D().go()
""",
        },
    ),
    "alias base": (
        {
            "lib/a.py": SUM
            + """\
B = A
class D(B):
    def _x(self):
        return 5

def run():
    return D().go()
""",
        },
        {
            "lib/a.py": RENAMED
            + """\
B = A
class D(B):
    def _x(self):
        return 5

def run():
    return D().go()
""",
        },
    ),
    "aliased import": (
        {
            "lib/b.py": SUM,
            "lib/a.py": """\
from lib.b import A as B
class D(B):
    def _x(self):
        return 5

def run():
    return D().go()
""",
        },
        {
            "lib/b.py": RENAMED,
        },
    ),
    "twice named subclass": (
        {
            "lib/b.py": SUM,
            "lib/c.py": """\
from lib.b import A
class D(A):
    def _x(self):
        return 5

def run():
    return D().go()
""",
            "lib/a.py": """\
from lib.b import A
class D(A):
    def _x(self):
        return 5

def run():
    return D().go()
""",
        },
        {
            "lib/b.py": RENAMED,
        },
    ),
    "type dict keyword": (
        {
            "lib/a.py": SUM
            + """\
def run():
    return type('D', (A,), dict(_x=lambda self: 5))().go()
""",
        },
        {
            "lib/a.py": RENAMED
            + """\
def run():
    return type('D', (A,), dict(_x=lambda self: 5))().go()
""",
        },
    ),
    "match keyword": (
        {
            "lib/a.py": SUM
            + """\
def run(k):
    match k:
        case A(_x=f):
            return f()
    return 0
""",
        },
        {
            "lib/a.py": EXCHANGED
            + """\
def run(k):
    match k:
        case A(_x=f):
            return f()
    return 0
""",
        },
    ),
    "base field": (
        {
            "lib/a.py": """\
from dataclasses import dataclass
@dataclass
class P:
    _z: object = len

class A(P):
    def go(self):
        return self._x() + self._y()

    def _x(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
        {
            "lib/a.py": """\
from dataclasses import dataclass
@dataclass
class P:
    _z: object = len

class A(P):
    def go(self):
        return self._z() + self._y()

    def _z(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
    ),
    "own value name": (
        {
            "lib/a.py": """\
class A:
    def go(self):
        return seeded(self._x) + self._y()

    def _x(self):
        return 1

    def _y(self):
        return 2


def seeded(f):
    return f.__name__
def run():
    return A().go()
""",
        },
        {
            "lib/a.py": """\
class A:
    def go(self):
        return seeded(self._z) + self._y()

    def _z(self):
        return 1

    def _y(self):
        return 2


def seeded(f):
    return f.__name__
def run():
    return A().go()
""",
        },
    ),
    "own __name__": (
        {
            "lib/a.py": """\
class A:
    def go(self):
        return self._x.__name__ + self._y()

    def _x(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
        {
            "lib/a.py": """\
class A:
    def go(self):
        return self._z.__name__ + self._y()

    def _z(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
    ),
    "decorator name": (
        {
            "lib/a.py": """\
def seeded(f):
    f.seed = f.__name__
    return f

class A:
    def go(self):
        return self._x() + self._y()

    @seeded
    def _x(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
        {
            "lib/a.py": """\
def seeded(f):
    f.seed = f.__name__
    return f

class A:
    def go(self):
        return self._z() + self._y()

    @seeded
    def _z(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
    ),
    "lambda self": (
        {
            "lib/a.py": """\
class Q:
    def _x(self):
        return 7

    def _z(self):
        return 8

class A:
    def go(self):
        return self._x() + (lambda self: self._x())(Q()) + self._y()

    def _x(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
        {
            "lib/a.py": """\
class Q:
    def _x(self):
        return 7

    def _z(self):
        return 8

class A:
    def go(self):
        return self._z() + (lambda self: self._z())(Q()) + self._y()

    def _z(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
    ),
    "rebound self": (
        {
            "lib/a.py": """\
class Q:
    def _x(self):
        return 7

    def _z(self):
        return 8

class A:
    def go(self):
        for self in (self, Q()):
            t = self._x()
        return t + self._y()

    def _x(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
        {
            "lib/a.py": """\
class Q:
    def _x(self):
        return 7

    def _z(self):
        return 8

class A:
    def go(self):
        for self in (self, Q()):
            t = self._z()
        return t + self._y()

    def _z(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
    ),
    "nested class self": (
        {
            "lib/a.py": """\
class Q:
    def _x(self):
        return 7

    def _z(self):
        return 8

class A:
    class I(Q):
        def f(self):
            return self._x()

    def go(self):
        return self._x() + self._y()

    def _x(self):
        return 1

    def _y(self):
        return 2


def run():
    return A.I().f() + A().go()
""",
        },
        {
            "lib/a.py": """\
class Q:
    def _x(self):
        return 7

    def _z(self):
        return 8

class A:
    class I(Q):
        def f(self):
            return self._z()

    def go(self):
        return self._z() + self._y()

    def _z(self):
        return 1

    def _y(self):
        return 2


def run():
    return A.I().f() + A().go()
""",
        },
    ),
    "nested not apart": (
        {
            "lib/a.py": """\
class A:
    class I:
        def f(self):
            return 1
        def f(self):
            return 2

    def go(self):
        return self._x() + self._y()

    def _x(self):
        return 1

    def _y(self):
        return 2


def run():
    return A().go()
""",
        },
        {
            "lib/a.py": """\
class A:
    class I:
        def f(self):
            return 1
        def f(self):
            return 2

    def go(self):
        return self._x() + self._y()

    def _x(self):
        return 1

    def _y(self):
        return 3


def run():
    return A().go()
""",
        },
    ),
    "mangled": (
        {
            "lib/a.py": """\
class A:
    def go(self):
        return self.__x() + self._y()

    def __x(self):
        return 1

    def _y(self):
        return 2


class D(A):
    def t(self):
        try:
            return self._A__x()
        except AttributeError:
            return 9

def run():
    return D().t()
""",
        },
        {
            "lib/a.py": """\
class A:
    def go(self):
        return self.__z() + self._y()

    def __z(self):
        return 1

    def _y(self):
        return 2


class D(A):
    def t(self):
        try:
            return self._A__x()
        except AttributeError:
            return 9

def run():
    return D().t()
""",
        },
    ),
    "far mention": (
        {
            "lib/a.py": SUM,
            "ours/m.py": """\
from lib.a import A
def run():
    return A()._x()
""",
        },
        {
            "lib/a.py": EXCHANGED,
        },
    ),
    "far getattr fstring": (
        {
            "lib/a.py": SUM,
            "ours/m.py": """\
from lib.a import A
def run(k):
    return getattr(A(), f'_{k}')()
""",
        },
        {
            "lib/a.py": EXCHANGED,
        },
    ),
    "far override, swapped": (
        {
            "lib/a.py": SUM,
            "ours/m.py": """\
from lib.a import A
class D(A):
    def _x(self):
        return 5

def run():
    return D().go()
""",
        },
        {
            "lib/a.py": EXCHANGED,
        },
    ),
    "far override by lambda": (
        {
            "lib/a.py": SUM,
            "ours/m.py": """\
from lib.a import A
class D(A):
    _x = lambda self: 5

def run():
    return D().go()
""",
        },
        {
            "lib/a.py": RENAMED,
        },
    ),
    "far override alias": (
        {
            "lib/a.py": SUM,
            "ours/m.py": """\
from lib.a import A
B = A
class D(B):
    def _x(self):
        return 5

def run():
    return D().go()
""",
        },
        {
            "lib/a.py": RENAMED,
        },
    ),
    "far override subscript": (
        {
            "lib/a.py": SUM,
            "ours/m.py": """\
from lib.a import A
class D(A[int]):
    def _x(self):
        return 5

def run():
    return D().go()
""",
        },
        {
            "lib/a.py": RENAMED,
        },
    ),
    "far override by nested": (
        {
            "lib/a.py": SUM,
            "ours/m.py": """\
from lib.a import A
def run():
    class D(A):
        def _x(self):
            return 5
    return D().go()
""",
        },
        {
            "lib/a.py": RENAMED,
        },
    ),
    "far both define": (
        {
            "lib/a.py": SUM
            + """\
class Q:
    def ask(self):
        return self._x()

    def _x(self):
        return 7

""",
            "ours/m.py": """\
from lib.a import A, Q
class D(A, Q):
    pass

def run():
    return D().ask()
""",
        },
        {
            "lib/a.py": RENAMED
            + """\
class Q:
    def ask(self):
        return self._x()

    def _x(self):
        return 7

""",
        },
    ),
    "tuple call reads": (
        {
            "lib/a.py": """\
A = 0
def g():
    return A
A, B = 1, g()
def run():
    return A, B
""",
        },
        {
            "lib/a.py": """\
A = 0
def g():
    return A
A = 1
B = g()
def run():
    return A, B
""",
        },
    ),
    "tuple attribute": (
        {
            "lib/a.py": """\
class M:
    def __getattr__(self, n):
        return A

A = 0
m = M()
A, B = 1, m.q
def run():
    return A, B
""",
        },
        {
            "lib/a.py": """\
class M:
    def __getattr__(self, n):
        return A

A = 0
m = M()
A = 1
B = m.q
def run():
    return A, B
""",
        },
    ),
}
