"""The candidate's side of the judge: runs inside a box, imports the candidate and does what the judge asks.

Standard library only, run as one compiled file that talks on descriptor 3. It holds no test and no expected value,
and nothing that it says is believed: the candidate may change all of it.

A message is JSON behind a length of four bytes. The judge sends ``{"q": [operation, ...]}`` and gets ``{"v": value}``
or ``{"e": exception}``, or first ``{"c": [callback, arguments, keywords]}``, which it answers in the same way. ``m``
beside them lists the changes of containers that the judge has passed, ``o`` what was printed.
"""

from __future__ import annotations

import io
import os
import sys

from agentrl.rewards.judge.codec import MAX_DEPTH, MUTABLE_BASES, Codec
from agentrl.rewards.judge.stream import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would take as long to import as all else here
    from typing import Any

CHANNEL = 3
MAX_PRINTED = 65_536
READY = {"v": "ready"}

_OPERATORS = (
    "len iter next getitem setitem delitem contains call enter exit bool neg pos abs invert int float index round str "
    "repr format reversed eq ne lt le gt ge hash await add sub mul matmul truediv floordiv mod divmod pow lshift "
    "rshift and or xor radd rsub rmul rmatmul rtruediv rfloordiv rmod rdivmod rpow rlshift rrshift rand ror rxor iadd "
    "isub imul imatmul itruediv ifloordiv imod ipow ilshift irshift iand ior ixor"
)
OPERATORS = tuple(f"__{name}__" for name in _OPERATORS.split())
PLAIN_BASES = (int, str, float, bytes, tuple, frozenset)
FUNCTIONS = ("function", "method_descriptor", "classmethod", "staticmethod")


class Callback:
    """Something of the judge's that the candidate was given: to call, or to ask for a public attribute."""

    def __init__(self, agent: Any, number: Any, kinds: Any) -> None:
        self.__dict__.update(_agent=agent, _number=number, _kinds=kinds)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._agent.call_back(self._number, "call", arguments, keywords)

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._agent.call_back(self._number, "get", (name,), {})

    def __setattr__(self, name: Any, value: Any) -> None:
        self._agent.call_back(self._number, "set", (name, value), {})


class CallbackFunction(Callback):
    """A function of the judge's, which a class of the candidate's may be given as a method."""

    def __get__(self, instance: Any, _owner: Any = None) -> Any:
        return self if instance is None else lambda *rest, **keywords: self(instance, *rest, **keywords)


class CallbackIterator(Callback):
    """An iterator of the judge's."""

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self._agent.call_back(self._number, "next", (), {})


class CallbackContext(Callback):
    """A context manager of the judge's."""

    def __enter__(self) -> Any:
        return self._agent.call_back(self._number, "enter", (), {})

    def __exit__(self, _kind: Any, error: Any, _trace: Any) -> Any:
        return self._agent.call_back(self._number, "exit", (error,), {})


CALLBACKS = {"call": Callback, "function": CallbackFunction, "iterator": CallbackIterator, "context": CallbackContext}


class Agent(Codec):
    """Carries out the judge's requests one after the other."""

    def __init__(self, stream: Any) -> None:
        super().__init__(numbers_encoded=False, numbers_decoded=True)
        self.stream = stream
        self.objects: list[Any] = []
        self.handle_of: dict[int, int] = {}
        self.described: set[int] = set()
        self.printed = io.StringIO()
        self.lock: Any = None

    def serve(self) -> None:
        while True:
            self.answer(self.stream.receive())

    def answer(self, message: Any) -> None:
        """One request, and the answer to it."""
        self.forget()
        described = set(self.described)
        try:
            self.apply(message.get("m", ()))
            operation, *rest = message["q"]
            self.stream.send(self.with_news({"v": getattr(self, "do_" + operation)(*rest)}))
        except BaseException as error:
            self.described = described  # what was described in the answer that failed was not heard
            self.stream.send(self.with_news({"e": self.encode_error(error)}))

    def with_news(self, reply: Any) -> Any:
        changes = self.changes()
        if changes:
            reply["m"] = changes
        text = self.printed.getvalue()
        if text:
            reply["o"] = text[:MAX_PRINTED]
            self.printed.seek(0)
            self.printed.truncate()
        return reply

    def call_back(self, number: Any, how: Any, arguments: Any, keywords: Any) -> Any:
        """Have the judge run something of its own; meanwhile it may ask for more."""
        with self.exclusive():
            call = [number, how, self.plain_arguments(arguments), [[k, self.encode(v)] for k, v in keywords.items()]]
            self.stream.send(self.with_news({"c": call}))
            while True:
                message = self.stream.receive()
                if "q" not in message:
                    return self.settle_call(message)
                self.answer(message)

    def plain_arguments(self, arguments: Any) -> Any:
        return [self.encode(argument) for argument in arguments]

    def settle_call(self, message: Any) -> Any:
        self.apply(message.get("m", ()))
        if "v" in message:
            return self.decode(message["v"])
        raise self.decode_error(*message["e"])

    def exclusive(self) -> Any:
        if self.lock is None:
            self.lock = __import__("_thread").RLock()
        return self.lock

    def handle(self, value: Any) -> Any:
        """The number of an object; the same object always has the same."""
        number = self.handle_of.get(id(value))
        if number is None:
            number = self.handle_of[id(value)] = len(self.objects)
            self.objects.append(value)
        return number

    def encode_other(self, value: Any, depth: Any) -> Any:
        kind = type(value)
        if issubclass(kind, Callback):
            return {"c": value._number}
        if value is NotImplemented or value is Ellipsis:
            return {"N": value is Ellipsis}
        if isinstance(value, type) and value.__module__ == "builtins":
            return {"B": value.__name__}
        if isinstance(value, type):
            return {"k": self.class_form(value)}
        if isinstance(value, BaseException):
            return {"E": self.encode_error(value)}
        if kind.__module__ == "numpy" and hasattr(value, "item"):
            return self.encode(value.item(), depth)
        for base in PLAIN_BASES:
            if issubclass(kind, base) and depth < MAX_DEPTH:
                return {"v": [self.handle(value), self.class_form(kind), self.encode(base(value), depth)]}
        return {"h": [self.handle(value), self.class_form(kind)]}

    def decode_other(self, tag: Any, body: Any, depth: Any) -> Any:
        if tag == "h":
            return self.objects[body]
        if tag == "c":
            return CALLBACKS[body[1]](self, body[0], body[1])
        if tag == "B":
            return getattr(__import__("builtins"), body)
        if tag == "E":
            return self.decode_error(*body)
        return super().decode_other(tag, body, depth)

    def class_form(self, kind: Any) -> Any:
        """The number of a class, with a description when it is the first time."""
        number = self.handle(kind)
        if number in self.described:
            return number
        self.described.add(number)
        owned = [base for base in kind.__mro__ if base is not object and base not in PLAIN_BASES]
        return {
            "id": number,
            "n": kind.__name__,
            "m": str(kind.__module__),
            "b": [self.base_form(base) for base in kind.__bases__],
            "o": [name for name in OPERATORS if any(vars(base).get(name) for base in owned)],
            "M": [name for name in OPERATORS if type(kind) is not type and name in vars(type(kind))],
            "f": [n for b in owned for n, v in vars(b).items() if type(v).__name__ in FUNCTIONS and n[:2] != "__"],
            "d": dataclass_fields(kind),
            "p": next((base.__name__ for base in MUTABLE_BASES if issubclass(kind, base)), None),
        }

    def base_form(self, base: Any) -> Any:
        if base.__module__ == "builtins" and (base in PLAIN_BASES or issubclass(base, BaseException)):
            return base.__name__
        if base is object or base in MUTABLE_BASES:
            return "object"
        if issubclass(base, BaseException) and base.__module__.partition(".")[0] in sys.stdlib_module_names:
            return [base.__module__, base.__name__]
        return self.class_form(base)

    def encode_error(self, error: Any) -> Any:
        kind = type(error)
        try:
            text = str(error)
        except BaseException:
            text = "?"
        arguments = [self.encode(argument) for argument in error.args]
        attributes = {str(name): self.encode(value) for name, value in list(vars(error).items())[:20]}
        for name in ("code", "errno", "name", "value"):
            if name not in attributes and hasattr(error, name):
                attributes[name] = self.encode(getattr(error, name))
        return [self.handle(error), self.base_form(kind), arguments, attributes, text[:2000]]

    def decode_error(self, known: Any, kind: Any, arguments: Any, number: Any) -> Any:
        if known is not None:
            return self.objects[known]
        found = getattr(__import__("builtins"), kind)(*[self.decode(argument) for argument in arguments])
        found._agentrl_raised = number  # so that the judge knows it again
        return found

    def do_import(self, name: Any) -> Any:
        """Import a module: its number, its functions and classes, its public names, its parts that are modules."""
        __import__(name)
        module = sys.modules[name]
        public = getattr(module, "__all__", None) or [key for key in vars(module) if key[:1] != "_"]
        own = {key: self.encode(item) for key, item in vars(module).items() if is_fixed(item)}
        return [self.handle(module), own, [str(key) for key in public]]

    def do_get(self, number: Any, name: Any) -> Any:
        return self.encode(getattr(self.objects[number], name))

    def do_set(self, number: Any, name: Any, arguments: Any) -> Any:
        return setattr(self.objects[number], name, self.decode(arguments[0]))

    def do_delete(self, number: Any, name: Any) -> Any:
        return delattr(self.objects[number], name)

    def do_call(self, number: Any, name: Any, arguments: Any, keywords: Any) -> Any:
        target = self.objects[number] if name is None else getattr(self.objects[number], name)
        given = [self.decode(argument) for argument in arguments]
        return self.encode(target(*given, **{key: self.decode(item) for key, item in keywords}))

    def do_operator(self, number: Any, name: Any, arguments: Any) -> Any:
        target = self.objects[number]
        return self.encode(getattr(type(target), name)(target, *[self.decode(argument) for argument in arguments]))

    def do_leave(self, number: Any, arguments: Any) -> Any:
        target, error = self.objects[number], self.decode(arguments[0])
        return bool(type(target).__exit__(target, type(error), error, error.__traceback__))

    def do_contents(self, number: Any) -> Any:
        target = self.objects[number]
        copied = next(vars(base)["copy"](target) for base in MUTABLE_BASES if isinstance(target, base))
        return self.encode(copied)

    def do_fields(self, number: Any) -> Any:
        target = self.objects[number]
        return [self.encode(getattr(target, name)) for name in dataclass_fields(type(target))]

    def do_run(self, number: Any) -> Any:
        return self.encode(__import__("asyncio").run(self.objects[number]))

    def do_calls(self, module: Any, calls: Any) -> Any:
        """Many calls of a module's functions: a list of ``[value]`` or ``[None, exception]``.

        A value is told as it was when its call returned, whatever later calls make of it.
        """
        self.numbers_decoded = False
        __import__(module)
        found = []
        for name, arguments in calls:
            try:
                given = [self.decode(argument) for argument in arguments]
                found.append([self.encode(getattr(sys.modules[module], name)(*given))])
            except BaseException as error:
                found.append([None, self.encode_error(error)])
        return found


def is_fixed(item: Any) -> Any:
    """Whether a module's attribute is a function or a class, which tests expect to stay what it is."""
    return isinstance(item, type) or type(item).__name__ in ("function", "builtin_function_or_method")


def dataclass_fields(kind: Any) -> Any:
    """Names of the fields of a dataclass with a generated comparison that looks at all of them, or None."""
    fields = getattr(kind, "__dataclass_fields__", None)
    code = getattr(kind.__eq__, "__code__", None)
    if fields is None or code is None or code.co_filename != "<string>":
        return None
    found = [field for field in fields.values() if field._field_type.name == "_FIELD"]
    found.sort(key=lambda field: (not field.init, field.kw_only))  # as the constructor takes them
    return [field.name for field in found] if found and all(field.compare for field in found) else None


def make_way(folder: Any) -> None:
    """Have the modules in a folder found before those of the same name that a warm interpreter has loaded already."""
    names = {name.partition(".")[0] for name in os.listdir(folder)} - set(sys.builtin_module_names)
    for loaded in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[loaded]


def main() -> None:
    """Serve until the judge hangs up."""
    agent = Agent(Stream(CHANNEL))
    sys.stdout = agent.printed
    sys.argv[:] = ["program"]
    sys.path.insert(0, os.getcwd())
    sys.dont_write_bytecode = True
    make_way(os.getcwd())
    sys.modules.pop("__main__", None)
    sys.modules["__main__"] = type(sys)("__main__")
    agent.stream.send(READY)  # up to here a failure is not the candidate's
    agent.serve()


if __name__ == "__main__":
    main()
