"""What the dispatcher and the compiler are told: schemas, fake kernels, tracing, export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch._dynamo.testing
from samples import CASES, DATA_FORMATS, OPERATORS, Case, one_each, torch_form, with_layout
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

import torch_ops  # noqa: F401  registers torch.ops.convtbw

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch's own, about its compiler's internals
    pytest.mark.unforced,
]

# The contract, spelled out: a change here is a change of the interface.
_R = "int[] strides, SymInt[] pads_begin, SymInt[] pads_end, int[] dilations, str auto_pad='none'"
_E = (
    "int[] strides, SymInt[] pads_begin=[], SymInt[] pads_end=[], int[] dilations, "
    "str auto_pad='none'"
)
_P = "SymInt[]? output_padding=None"
_G = "int groups=1, str data_format='NXC'"
SCHEMAS = (
    (
        "conv_transpose_backward_weights(Tensor src, Tensor diff_dst, "
        f"Tensor? weights_shape_tensor=None, *, {_R}, {_P}, {_G}, str weights_format='XOI', "
        "SymInt[]? weights_shape=None) -> Tensor"
    ),
    (
        "conv_transpose_backprop_filters(Tensor input_forward, Tensor output_delta, "
        f"Tensor? filter_shape_tensor=None, *, {_R}, {_P}, {_G}, str filter_format='XIO', "
        "SymInt[]? filter_shape=None) -> Tensor"
    ),
    (
        f"conv_transpose_backward_data(Tensor diff_dst, Tensor weights, *, {_R}, {_P}, {_G}, "
        "str weights_format='XIO') -> Tensor"
    ),
    (
        "convolution_backprop_filters(Tensor input_forward, Tensor output_delta, "
        f"Tensor? filter_shape_tensor=None, *, {_E}, {_G}, str filter_format='XIO', "
        "SymInt[]? filter_shape=None) -> Tensor"
    ),
    (
        "convolution_backward_weights(Tensor src, Tensor diff_dst, "
        f"Tensor? weights_shape_tensor=None, *, {_E}, {_G}, str weights_format='XIO', "
        "SymInt[]? weights_shape=None) -> Tensor"
    ),
    (
        f"convolution_backward_data(Tensor diff_dst, Tensor weights, *, SymInt[] src_shape, {_R}, "
        f"{_G}, str weights_format='XIO') -> Tensor"
    ),
    (
        f"conv_transpose(Tensor src, Tensor weights, Tensor? bias=None, *, {_R}, {_P}, {_G}, "
        "str weights_format='XOI') -> Tensor"
    ),
    (
        f"convolution(Tensor src, Tensor weights, Tensor? bias=None, *, {_R}, {_G}, "
        "str weights_format='XIO') -> Tensor"
    ),
)
every_operator = pytest.mark.parametrize("case", one_each(), ids=str)
ADDING = (
    "conv_transpose_backward_weights_add_(Tensor(a!) diff_weights, Tensor src, Tensor diff_dst, "
    f"*, {_R}, {_P}, {_G}, str weights_format='XOI') -> ()",
    "convolution_backward_weights_add_(Tensor(a!) diff_weights, Tensor src, Tensor diff_dst, *, "
    f"{_E}, {_G}, str weights_format='XIO') -> ()",
)
OF_SLICES = (
    "_convolution_backward_weights_of_slices",
    "_conv_transpose_backward_weights_of_slices",
)


def overload(case: Case) -> torch._ops.OpOverload:
    return getattr(torch.ops.convtbw, case.op).default


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# --- schemas --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", SCHEMAS + ADDING, ids=lambda text: text.split("(")[0])
def test_schema_is_frozen(text: str) -> None:
    actual = getattr(torch.ops.convtbw, text.split("(")[0]).default._schema
    # Only torch's spelling of string defaults differs from the contract's.
    assert str(actual) == "convtbw::" + text.replace("'", '"')
    assert actual == torch._C.parse_schema("convtbw::" + text)


def test_there_are_exactly_eight_public_operators_and_two_that_add() -> None:
    registered = [
        name.removeprefix("convtbw::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("convtbw::") and not name.startswith("convtbw::_")
    ]
    adding = [text.split("(")[0] for text in ADDING]
    assert sorted(OPERATORS) == sorted(text.split("(")[0] for text in SCHEMAS)
    assert sorted(registered) == sorted([*OPERATORS, *adding])


@pytest.mark.parametrize("name", [*OPERATORS, *OF_SLICES])
def test_operator_has_its_kernels(name: str) -> None:
    for key in ("CPU", "Meta", "Autograd"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"convtbw::{name}", key), key


@pytest.mark.parametrize("name", OF_SLICES)
def test_operator_of_slices_has_the_public_one_s_schema(name: str) -> None:
    public = getattr(torch.ops.convtbw, name[1:].removesuffix("_of_slices")).default._schema
    actual = getattr(torch.ops.convtbw, name).default._schema
    assert str(actual) == str(public).replace(public.name, actual.name)


# --- opcheck --------------------------------------------------------------------------------------

_OPCHECK = [
    *one_each(),
    *one_each(data_format="NCX", weights_format="XIO"),
    *(case for case in CASES if case.spatial != 2 and case.groups == 1 and case.dilations[0] == 1),
    *(case for case in CASES if case.bias or case.group_on == "O" or case.auto_pad == "omitted"),
]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("case", _OPCHECK, ids=str)
def test_opcheck(case: Case, requires_grad: bool) -> None:
    tensors = tuple(tensor.requires_grad_(requires_grad) for tensor in case.tensors())
    torch.library.opcheck(overload(case), tensors, case.kwargs())


@pytest.mark.parametrize(
    "case", [case for case in one_each() if case.operator.result == "w"], ids=str
)
def test_opcheck_with_a_shape_tensor(case: Case) -> None:
    # The fake kernel refuses a shape tensor, so only what needs no fake kernel can be asked.
    kwargs = case.kwargs()
    shape = torch.tensor(kwargs.pop(case.operator.shape))
    tensors = tuple(tensor.requires_grad_() for tensor in case.tensors())
    torch.library.opcheck(
        overload(case), (*tensors, shape), kwargs,
        test_utils=("test_schema", "test_autograd_registration"),
    )  # fmt: skip


# --- fake results ---------------------------------------------------------------------------------


def _expected_strides(case: Case, inputs: tuple[Tensor, ...], result: Tensor) -> tuple[int, ...]:
    """The rule of the specification, section 4, for the shape of `result`."""
    blank = torch.empty(result.shape, device="meta")
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(result.dim())
    if case.operator.result == "w" or case.data_format == "NXC" or wanted is None:
        return blank.stride()
    data = [
        tensor for tensor, role in zip(inputs, case.operator.roles, strict=False) if role != "w"
    ]
    if any(
        not tensor.is_contiguous() and tensor.is_contiguous(memory_format=wanted) for tensor in data
    ):
        return blank.to(memory_format=wanted).stride()
    return blank.stride()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("name", OPERATORS)
def test_fake_result_is_like_the_real_one(
    name: str, spatial: int, data_format: str, layout: str
) -> None:
    threads = torch.get_num_threads()
    try:
        for batch in (0, 1, 2):
            for number in (1, 2):
                torch.set_num_threads(number)
                _compare_with_fake(name, spatial, data_format, layout, batch)
    finally:
        torch.set_num_threads(threads)


def _compare_with_fake(name: str, spatial: int, data_format: str, layout: str, batch: int) -> None:
    case = Case(
        name, src=(4, 3, 3)[:spatial], kernel=(2, 2, 1)[:spatial], strides=(1, 2, 1)[:spatial],
        dilations=(2, 1, 1)[:spatial], pads_begin=(1, 0, 0)[:spatial],
        pads_end=(0, 1, 0)[:spatial], batch=batch, groups=2, data_format=data_format,
    )  # fmt: skip
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        # Each input alone in the other layout, then both: one data input decides the result's.
        plain = case.tensors(dtype)
        other = tuple(
            tensor
            if role == "w" and layout == "channels_last"
            else with_layout(tensor, layout, data_format)
            for tensor, role in zip(plain, case.operator.roles, strict=True)
        )
        for inputs in ((other[0], plain[1]), (plain[0], other[1]), other):
            real = case.call(*inputs)
            with FakeTensorMode() as mode:
                fake = case.call(*(mode.from_tensor(tensor) for tensor in inputs))
            meta = case.call(
                *(
                    torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")
                    for tensor in inputs
                )
            )
            assert real.shape == fake.shape == meta.shape == case.shape(case.operator.result)
            assert real.dtype == fake.dtype == meta.dtype == dtype
            assert real.stride() == fake.stride() == meta.stride()
            assert real.stride() == _expected_strides(case, inputs, real)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fake_result_of_every_case(case: Case) -> None:
    inputs = case.tensors()
    real = case.call(*inputs)
    with FakeTensorMode() as mode:
        fake = case.call(*(mode.from_tensor(tensor) for tensor in inputs))
    assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())


# --- tracing and export ---------------------------------------------------------------------------


@every_operator
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(case: Case, mode: str) -> None:
    def with_gradients(first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        result = case.call(first, second)
        return result, *torch.autograd.grad(result.sin().sum(), (first, second))

    inputs = tuple(tensor.requires_grad_() for tensor in case.tensors())
    traced = make_fx(with_gradients, tracing_mode=mode)(*inputs)
    other = tuple(tensor.requires_grad_() for tensor in case.tensors(seed=1))
    torch.testing.assert_close(traced(*other), with_gradients(*other))


def _forward(name: str, auto_pad: str, data_format: str) -> Case:
    # Batch and extents differ from each other and from the weights': the compiler takes sizes that
    # were equal once to be equal always.
    return Case(
        name, src=(16, 18), kernel=(3, 2), strides=(2, 3), dilations=(1, 2), pads_begin=(1, 0),
        pads_end=(0, 2), auto_pad=auto_pad, data_format=data_format, groups=2, batch=7,
    )  # fmt: skip


class _Module(torch.nn.Module):
    def __init__(self, case: Case, weights: Tensor) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(weights)
        self.case = case

    def forward(self, src: Tensor) -> Tensor:
        return self.case.call(src, self.weights)


@pytest.mark.parametrize("auto_pad", ["none", "same_upper", "same_lower", "valid"])
@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("name", ["convolution", "conv_transpose"])
def test_export_with_dynamic_batch_and_extents(name: str, data_format: str, auto_pad: str) -> None:
    case = _forward(name, auto_pad, data_format)
    src, weights = case.tensors()
    module = _Module(case, weights)
    first = 1 if data_format == "NXC" else 2
    dynamic = {
        0: Dim("batch", min=1, max=64),
        first: Dim("height", min=8, max=128),
        first + 1: Dim("width", min=8, max=128),
    }
    program = export(module, (src,), dynamic_shapes={"src": dynamic}, strict=False)
    for batch, extents in ((1, (16, 16)), (3, (17, 20)), (5, (31, 8)), (2, (9, 33))):
        other = replace(case, batch=batch, src=extents)
        sample = other.tensors()[0]
        expected = torch_form(other)(sample, weights)
        torch.testing.assert_close(program.module()(sample), expected)


@pytest.mark.parametrize("name", OPERATORS)
def test_symbolic_trace_serves_other_extents(name: str) -> None:
    # The shapes in the call are computed from sizes: SymInts reach every shape formula.
    case = next(case for case in one_each(data_format="NCX") if case.op == name)
    case = replace(case, src=(7, 8), batch=4)
    row = case.operator

    def function(first: Tensor, second: Tensor, like: Tensor) -> Tensor:
        kwargs = case.kwargs()
        if row.shape is not None:
            kwargs[row.shape] = list(like.shape)
        return overload(case)(first, second, **kwargs)

    def inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
        first, second = case.tensors()
        return first, second, torch.empty(case.shape(row.result), dtype=torch.float64)

    traced = make_fx(function, tracing_mode="symbolic")(*inputs(case))
    for batch, extents in ((3, (9, 6)), (6, (11, 13))):
        other = replace(case, batch=batch, src=extents)
        sample = inputs(other)
        torch.testing.assert_close(traced(*sample), torch_form(other)(*sample[:2]))


# --- torch.compile --------------------------------------------------------------------------------


def _gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    result = function(*inputs)
    return [result, *torch.autograd.grad(result.sin().sum(), inputs)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("name", OPERATORS)
def test_compile_with_backward(
    name: str, data_format: str, dynamic: bool, fresh_compiler: None
) -> None:
    case = next(case for case in one_each(data_format=data_format) if case.op == name)
    compiled = torch.compile(case.call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for batch in (2, 4, 5):
        sized = replace(case, batch=batch)
        if case.operator.shape == "src_shape" and batch != 2:
            continue  # the batch is written in the attribute, a constant of the compiled function
        inputs = tuple(tensor.requires_grad_() for tensor in sized.tensors(seed=batch))
        torch.testing.assert_close(
            _gradients(compiled, inputs), _gradients(torch_form(sized), inputs)
        )


@pytest.mark.parametrize("auto_pad", ["none", "same_upper", "same_lower"])
@pytest.mark.parametrize("name", ["convolution", "conv_transpose"])
def test_compile_once_for_all_sizes(name: str, auto_pad: str, fresh_compiler: None) -> None:
    case = _forward(name, auto_pad, "NCX")
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(case.call, fullgraph=True, backend=graphs, dynamic=True)
    for batch, extents in ((7, (16, 18)), (2, (17, 20)), (5, (31, 9))):
        sized = replace(case, batch=batch, src=extents)
        inputs = tuple(tensor.requires_grad_() for tensor in sized.tensors())
        torch.testing.assert_close(
            _gradients(compiled, inputs), _gradients(torch_form(sized), inputs)
        )
    assert graphs.frame_count == 1


# --- shape tensors while tracing ------------------------------------------------------------------


def _says_what_to_pass(message: str, attribute: str) -> None:
    assert "unknown" in message
    assert f"{attribute}_tensor" in message
    assert attribute in message.replace(f"{attribute}_tensor", "")


@pytest.mark.parametrize("beside_the_attribute", [False, True])
@pytest.mark.parametrize(
    "case", [case for case in one_each() if case.operator.result == "w"], ids=str
)
def test_shape_tensor_while_tracing(
    case: Case, beside_the_attribute: bool, fresh_compiler: None
) -> None:
    attribute = case.operator.shape
    kwargs = case.kwargs()
    values = torch.tensor(kwargs[attribute])
    if not beside_the_attribute:
        del kwargs[attribute]

    def function(first: Tensor, second: Tensor, shape: Tensor) -> Tensor:
        return overload(case)(first, second, shape, **kwargs)

    class Module(torch.nn.Module):
        def forward(self, first: Tensor, second: Tensor, shape: Tensor) -> Tensor:
            return function(first, second, shape)

    inputs = (*case.tensors(), values)
    expected = function(*inputs)  # outside tracing the tensor is read
    assert tuple(expected.shape) == tuple(values.tolist())
    attempts = {
        "fake": lambda: make_fx(function, tracing_mode="fake")(*inputs),
        "symbolic": lambda: make_fx(function, tracing_mode="symbolic")(*inputs),
        "export": lambda: export(Module(), inputs, strict=False),
        "compile": lambda: torch.compile(function, backend="eager", fullgraph=True)(*inputs),
        "meta": lambda: function(*(tensor.to("meta") for tensor in inputs[:2]), values),
    }
    for attempt in attempts.values():
        with pytest.raises(Exception) as caught:  # noqa: PT011  each tracer has its own class
            attempt()
        _says_what_to_pass(str(caught.value), attribute)
