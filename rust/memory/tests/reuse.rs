//! Results that are written to memory that nothing reads any more.

use super::*;
use crate::graph::Operator;

/// `a = f(x)`, `b = g(a)`, `c = h(b, x)`; axes of 8 units, so that every tensor has 32 bytes.
fn chain(edit: impl FnOnce(&mut [Operator])) -> Graph {
    let mut builder = GraphBuilder::new(&[("m", 8)]);
    let x = builder.input(InputKind::Input, "x", &[0]);
    let a = builder.operator("a", &[x], &[0], 1.0, &["S0 -> S0"]);
    let b = builder.operator("b", &[a], &[0], 1.0, &["S0 -> S0"]);
    let c = builder.operator("c", &[b, x], &[0], 1.0, &["S0 S0 -> S0"]);
    builder.output(OutputKind::Output, "y", c, None);
    edit(&mut builder.edit().operators);
    builder.finish()
}

const WHOLE: [&str; 5] = [
    "input x R",
    "compute a R -> R",
    "compute b R -> R",
    "compute c R R -> R",
    "output y c R",
];

/// How many tensors are held at the peak.
fn held(graph: &Graph, lines: &[&str]) -> f64 {
    peak(graph, lines, 0, 0).total() / 32.0
}

#[test]
fn a_result_takes_the_memory_of_an_operand_that_is_read_last() {
    assert_eq!(held(&chain(|_| {}), &WHOLE), 3.0);
    let all = |operators: &mut [Operator]| operators.iter_mut().for_each(|it| it.reuses = Some(0));
    // x is the caller's; a, b and c are one.
    assert_eq!(held(&chain(all), &WHOLE), 2.0);
    // Not where someone may keep it, where it is shown in part, or where it is read again.
    let kept = chain(|operators| {
        all(operators);
        operators[0].opaque = true;
        operators[2].reuses = None;
    });
    assert_eq!(held(&kept, &WHOLE), 3.0);
    let part = chain(|operators| {
        all(operators);
        operators[0].partial = true;
        operators[2].reuses = None;
    });
    assert_eq!(held(&part, &WHOLE), 3.0);
    let again = chain(|operators| {
        all(operators);
        operators[2].operands[1] = operators[0].results[0];
        operators[2].reuses = None;
    });
    assert_eq!(held(&again, &WHOLE), 4.0);
}

#[test]
fn a_collective_has_memory_of_its_own() {
    let graph = chain(|operators| operators.iter_mut().for_each(|it| it.reuses = Some(0)));
    let gathered = [
        "input x R",
        "convert x R S0",
        "compute a S0 -> S0",
        "convert a S0 R padded",
        "compute b R -> R",
        "compute c R R -> R",
        "output y c R",
    ];
    let shares = vec![THREE.to_vec()];
    let valid = validate(&graph, &program(&graph, &gathered)).expect("a valid program");
    // While b is made: x, what is gathered, and b, which c is then written to.
    let line = &over_program(&graph, &shares, 3, &[0], &valid, Optimiser::keeping(0))[0];
    assert_eq!(&line[4..6], &[3.0 * 32.0, 2.0 * 32.0]);
}

#[test]
fn what_is_fused_is_never_made() {
    let fused = |reuses: Option<usize>| {
        chain(|operators| {
            operators[1].fused = true;
            operators[2].reuses = reuses;
            operators[2].operands = vec![operators[1].results[0], operators[0].results[0]];
        })
    };
    // c reads b, and is written to a, which b also reads.
    assert_eq!(held(&fused(Some(1)), &WHOLE), 2.0);
    // Where c has memory of its own, b is made.
    assert_eq!(held(&fused(None), &WHOLE), 4.0);
}
