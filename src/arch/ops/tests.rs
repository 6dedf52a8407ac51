use super::*;

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
