use super::*;
use crate::language::eval::Scope;
use crate::language::names::Captures;

fn spec(kind: OpKind, params: &[(&'static str, &str)]) -> OpSpec {
    let param = |row: &(&'static str, &str)| (row.0, Param::One(Expr::parse(row.1).unwrap()));
    OpSpec { kind, params: params.iter().map(param).collect() }
}

fn shapes(kind: OpKind, params: &[(&'static str, &str)], dims: &[u64]) -> Result<Vec<Vec<u64>>, String> {
    let op = spec(kind, params).resolve(&Scope::default(), Captures::default(), dims);
    op.and_then(|op| op.shapes(dims)).map_err(|error| error.to_string())
}

#[test]
fn every_kind_has_its_row_in_place() {
    for (index, row) in KINDS.iter().enumerate() {
        assert_eq!(row.kind as usize, index);
        assert_eq!(row.kind.row().name, row.name);
        assert!(row.short.is_empty() || row.params.iter().any(|param| param.name == row.short));
    }
}

#[test]
fn shapes_are_inferred() {
    use OpKind::*;
    let ok = |dims: &[&[u64]]| Ok(dims.iter().map(|d| d.to_vec()).collect::<Vec<_>>());
    assert_eq!(shapes(PermuteRope, &[("heads", "4")], &[64, 8]), ok(&[&[64, 8]]));
    assert_eq!(shapes(PermuteRope, &[("heads", "2")], &[64]), ok(&[&[64]]));
    assert_eq!(shapes(Split, &[("sizes", "[d0 // 4, d0 - d0 // 4]")], &[8, 3]), ok(&[&[2, 3], &[6, 3]]));
    assert_eq!(shapes(Unzip, &[("axis", "-1")], &[4, 6]), ok(&[&[4, 3], &[4, 3]]));
    assert_eq!(shapes(Unzip, &[("axis", "0"), ("n", "3")], &[3, 2]), ok(&[&[1, 2], &[1, 2], &[1, 2]]));
    assert_eq!(shapes(Transpose, &[("axes", "[-1, -2]")], &[2, 3, 5]), ok(&[&[2, 5, 3]]));
    assert_eq!(shapes(Reshape, &[("dims", "[2, -1, 3]")], &[12, 3]), ok(&[&[2, 6, 3]]));
    assert_eq!(shapes(Squeeze, &[], &[4, 1, 3]), ok(&[&[4, 3]]));
    assert_eq!(shapes(Unsqueeze, &[("axis", "1")], &[4]), ok(&[&[4, 1]]));
    assert_eq!(shapes(Flatten, &[], &[4, 1, 3]), ok(&[&[12]]));
    assert_eq!(shapes(Slice, &[("end", "100")], &[4, 3]), ok(&[&[4, 3]]));
    assert_eq!(shapes(Slice, &[("start", "-1")], &[4, 3]), ok(&[&[1, 3]]));
    assert_eq!(shapes(Gather, &[("indices", "[3, 0]")], &[4, 3]), ok(&[&[2, 3]]));
    assert_eq!(shapes(Ungroup, &[("groups", "2"), ("sizes", "[3, 1]")], &[8, 5]), ok(&[&[8, 5]]));
    let pairs = [("group", "4"), ("rot", "2")];
    assert_eq!(shapes(Deinterleave, &pairs, &[8, 5]), ok(&[&[8, 5]]));
    assert_eq!(shapes(PadRows, &[("rows", "9")], &[8, 5]), ok(&[&[9, 5]]));
    assert_eq!(shapes(PadRows, &[("rows", "7")], &[8, 5]), ok(&[&[8, 5]]));
    assert_eq!(shapes(PrependZero, &[], &[8, 5]), ok(&[&[9, 5]]));
    assert_eq!(shapes(GatherBlocks, &[("n", "4"), ("index", "[3, 0]")], &[8, 5]), ok(&[&[4, 5]]));
    assert_eq!(shapes(Repeat, &[("n", "4")], &[1, 5]), ok(&[&[4, 5]]));
    assert_eq!(shapes(Scale, &[("by", "2"), ("rows", "[4, d0]")], &[8]), ok(&[&[8]]));
    assert_eq!(shapes(Ternary, &[], &[8, 5]), ok(&[&[8, 5]]));
    let free = [("axis", "1"), ("factors", "[2, -1]"), ("order", "[1, 0]")];
    assert_eq!(shapes(PermuteAxis, &free, &[4, 6]), ok(&[&[4, 6]]));
    let axis = [("axis", "1"), ("factors", "[2, 3]"), ("order", "[1, 0]")];
    assert_eq!(shapes(PermuteAxis, &axis, &[4, 6]), ok(&[&[4, 6]]));
}

#[test]
fn what_does_not_fit_is_an_error() {
    use OpKind::*;
    for (kind, params, dims, message) in [
        (
            PermuteRope,
            &[("heads", "3")][..],
            &[64u64][..],
            "`permute_rope`: 3 heads of pairs do not make 64 rows",
        ),
        (Split, &[("sizes", "[1, 2]")], &[8], "`split`: [1, 2] do not make 8"),
        (Transpose, &[("axes", "[0, 2]")], &[8, 2], "`transpose`: axis 2 of a tensor with 2 dimensions"),
        (Reshape, &[("dims", "[5, -1]")], &[8], "`reshape`: [5, -1] do not make [8]"),
        (Squeeze, &[("axis", "0")], &[8], "`squeeze`: `axis` is out of range"),
        (Gather, &[("indices", "[8]")], &[8], "`gather`: `indices` is out of range"),
        (Add, &[("value", "'x'")], &[8], "`add`: `add` does not take a text"),
        (Unzip, &[("axis", "0"), ("n", "3")], &[8], "`unzip`: [3] do not make 8"),
        (Unzip, &[("axis", "1")], &[2, 5, 8], "`unzip`: [2] do not make 5"),
        (Unzip, &[("axis", "2")], &[2, 4], "`unzip`: axis 2 of a tensor with 2 dimensions"),
        (Unzip, &[("axis", "-3")], &[2, 4], "`unzip`: axis -3 of a tensor with 2 dimensions"),
        (Unzip, &[("axis", "0"), ("n", "0")], &[8], "`unzip`: [0] do not make 8"),
        (Unzip, &[("axis", "0"), ("n", "128")], &[256], "`unzip`: [128] do not make 256"),
        (Unzip, &[("axis", "0"), ("n", "-2")], &[8], "`unzip`: `n` is out of range"),
        (Negate, &[("group", "3"), ("from", "1")], &[8], "`negate`: groups of 3 do not make 8 rows"),
        (Negate, &[("group", "4"), ("from", "5")], &[8], "`negate`: `from` is out of range"),
        (Deinterleave, &[("group", "4"), ("rot", "3")], &[8], "`deinterleave`: `rot` is out of range"),
        (Interleave, &[("group", "4"), ("rot", "6")], &[8], "`interleave`: `rot` is out of range"),
        (GatherBlocks, &[("n", "3"), ("index", "[0]")], &[8], "`gather_blocks`: 3 blocks do not make 8"),
        (GatherBlocks, &[("n", "2"), ("index", "[2]")], &[8], "`gather_blocks`: `index` is out of range"),
        (Repeat, &[("n", "0")], &[8], "`repeat`: `n` is out of range"),
        (Scale, &[("by", "2"), ("rows", "[1]")], &[8], "`scale`: `rows` is out of range"),
        (L2Normalize, &[("axis", "1"), ("eps", "0")], &[8, 2], "`l2_normalize`: `axis` is out of range"),
        (ResizeGrid, &[("side", "2")], &[8, 2], "`resize_grid`: rows of a square do not make 8 rows"),
        (ResizeGrid, &[("side", "0")], &[9, 2], "`resize_grid`: `side` is out of range"),
        (AddIndex, &[("below", "4")], &[2, 2], "`add_index`: axis 1 of a tensor with 2 dimensions"),
        (
            PermuteAxis,
            &[("factors", "[2, 4]"), ("order", "[0, 0]")],
            &[8],
            "`permute_axis`: `order` is out of range",
        ),
    ] {
        assert_eq!(shapes(kind, params, dims), Err(message.to_owned()));
    }
}

#[test]
fn inverses_undo() {
    let op = Op::PermuteAxis { axis: 0, factors: vec![4, 2, 8], order: vec![0, 2, 1] };
    let back = op.inverse().unwrap();
    assert_eq!(back, Op::PermuteAxis { axis: 0, factors: vec![4, 8, 2], order: vec![0, 2, 1] });
    assert_eq!(back.inverse().unwrap(), op);
    assert_eq!(Op::Slice { axis: 0, start: 0, end: 1 }.inverse(), None);
}

#[test]
fn a_card_says_what_undoes_its_operation() {
    use OpKind::*;
    let undo = |kind, params: &[(&'static str, &str)], dims: &[u64]| {
        let undo = spec(kind, params).undo(&Scope::default(), Captures::default(), dims).unwrap();
        undo.map(|undo| (undo.op.shapes(dims).unwrap().remove(0), undo.is_exact))
    };
    for (kind, params, dims, want) in [
        (
            Reshape,
            &[("dims", "[12]"), ("hf", "[d0 // 4, 4]")][..],
            &[12u64][..],
            Some((&[3u64, 4][..], true)),
        ),
        (Reshape, &[("dims", "[12]")], &[12], None),
        (Squeeze, &[("axis", "1")], &[4, 3], Some((&[4, 1, 3], true))),
        (Squeeze, &[("axis", "-1")], &[4, 3], Some((&[4, 3, 1], true))),
        (Squeeze, &[], &[4, 3], Some((&[4, 3], true))),
        (Squeeze, &[("hf", "[d0, 1, d1]")], &[4, 3], Some((&[4, 1, 3], true))),
        (Unsqueeze, &[("axis", "0")], &[1, 3], Some((&[3], true))),
        (Flatten, &[("hf", "[4, -1]")], &[12], Some((&[4, 3], true))),
        (PadRows, &[("rows", "9")], &[9, 2], Some((&[9, 2], true))),
        (PrependZero, &[], &[9, 2], Some((&[8, 2], true))),
        (Slice, &[("end", "9")], &[9, 2], Some((&[9, 2], false))),
        (Slice, &[("start", "2")], &[9, 2], Some((&[11, 2], false))),
        (Slice, &[("axis", "1"), ("start", "2")], &[9, 2], None),
        (NegExp, &[], &[9], Some((&[9], false))),
        (SubMean, &[], &[9], Some((&[9], false))),
        (Ternary, &[], &[9], None),
        (Gather, &[("indices", "[1, 0]")], &[2], Some((&[2], true))),
        (Gather, &[("indices", "[1, 3]")], &[2], None),
        (AddIndex, &[("below", "4")], &[2], Some((&[2], true))),
    ] {
        let want = want.map(|(dims, is_exact)| (dims.to_vec(), is_exact));
        assert_eq!(undo(kind, params, dims), want, "{kind:?} {params:?}");
    }
}
