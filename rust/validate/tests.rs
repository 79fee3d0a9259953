mod errors;
mod resplit;

use super::*;
use crate::testing::{
    GraphBuilder, MATMUL, Random, composed, divided, perceptron, program, random_program, remade, run,
};
use proptest::prelude::*;

/// Whether a program runs and gives the outputs of one device.
fn is_right(graph: &Graph, candidate: &Program, random: &mut Random) -> bool {
    let one_device = vec![vec![1.0]; graph.axes.len()];
    let seed = random.bits();
    let reference = run(graph, &one_device, &random_program(graph, &mut Random(1)), seed).expect("a valid program");
    let shares = random.shares(graph, 3);
    let Ok(found) = run(graph, &shares, candidate, seed) else {
        return false;
    };
    let close = |one: &f64, other: &f64| (one - other).abs() <= 1e-9 * (1.0 + other.abs());
    reference.keys().eq(found.keys())
        && reference
            .values()
            .flatten()
            .zip(found.values().flatten())
            .all(|(one, other)| close(one, other))
}

/// The graph with another split class of one of its axes, half of the time.
fn some_divided(graph: Graph, random: &mut Random) -> Graph {
    match random.below(6) {
        axis @ 0..3 => divided(&graph, axis),
        _ => graph,
    }
}

/// Drops, swaps, repeats or alters an instruction.
fn mutate(graph: &Graph, program: &mut Program, random: &mut Random) {
    let instructions = &mut program.instructions;
    let index = random.below(instructions.len());
    match random.below(6) {
        0 => drop(instructions.remove(index)),
        1 => {
            let next = (index + 1) % instructions.len();
            instructions.swap(index, next);
        }
        2 => instructions.insert(index, instructions[random.below(instructions.len())].clone()),
        3 => {
            let other = random.below(instructions.len());
            instructions[index] = instructions[other].clone();
        }
        _ => {
            let placements = [
                Placement::Replicate,
                Placement::Partial,
                Placement::Shard(0),
                Placement::Shard(1),
                Placement::Shard(2),
            ];
            let other = vec![placements[random.below(5)]];
            match &mut instructions[index] {
                Instruction::Input { placement, .. }
                | Instruction::Free { placement, .. }
                | Instruction::Output { placement, .. } => *placement = other,
                Instruction::Compute { inputs, outputs, .. } => {
                    let position = random.below(inputs.len() + 1);
                    match inputs.get_mut(position) {
                        Some((_, placement)) => *placement = other,
                        None => outputs[0].1 = other,
                    }
                }
                Instruction::Convert {
                    conversion,
                    tensor,
                    from,
                    to,
                    ..
                } => {
                    match random.below(2) {
                        0 => *from = other,
                        _ => *to = other,
                    }
                    let tensor = graph.names().tensors[tensor];
                    if let Some(kind) = Conversion::between(graph, tensor, from, to) {
                        *conversion = kind;
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn random_programs_are_valid_and_right(seed: u64) {
        let random = &mut Random(seed);
        let graph = some_divided(composed(perceptron(1 + random.below(2), [6, 4, 5]), random), random);
        let program = random_program(&graph, random);
        let valid = validate(&graph, &program);
        prop_assert!(valid.is_ok(), "{}", valid.err().map_or(String::new(), |error| error.to_string()));
        prop_assert!(is_right(&graph, &program, random));
    }

    #[test]
    fn programs_that_make_values_again_are_valid_and_right(seed: u64) {
        let random = &mut Random(seed);
        let graph = composed(perceptron(1 + random.below(2), [6, 4, 5]), random);
        let plain = random_program(&graph, random);
        let often = 0.1 + 0.4 * random.unit();
        let program = remade(&plain, random, often);
        let valid = validate(&graph, &program);
        prop_assert!(valid.is_ok(), "{}", valid.err().map_or(String::new(), |error| error.to_string()));
        prop_assert!(is_right(&graph, &program, random));
        // Every making is a value of its own, and whatever is freed is the one that was there.
        let valid = valid.expect("valid");
        let frees = valid.steps.iter().filter_map(|step| match step {
            Step::Free { read } => Some(*read),
            _ => None,
        });
        let mut freed: Vec<usize> = frees.collect();
        let count = freed.len();
        freed.sort_unstable();
        freed.dedup();
        prop_assert_eq!(freed.len(), count);
        prop_assert!(count > 0 || plain == program);
    }

    #[test]
    fn a_free_that_takes_what_is_read_or_an_input_is_refused(seed: u64) {
        let random = &mut Random(seed);
        let graph = composed(perceptron(1, [6, 4, 5]), random);
        let plain = random_program(&graph, random);
        let mut program = remade(&plain, random, 0.3);
        let inputs = graph.inputs.len();
        let at = inputs + random.below(program.instructions.len() - inputs);
        let free = match &program.instructions[at] {
            // Twice.
            Instruction::Free { .. } => program.instructions[at].clone(),
            Instruction::Output { tensor, placement, .. } => Instruction::Free {
                tensor: tensor.clone(),
                placement: placement.clone(),
            },
            Instruction::Convert { tensor, from, .. } => Instruction::Free {
                tensor: tensor.clone(),
                placement: from.clone(),
            },
            Instruction::Compute { inputs, .. } => {
                let (tensor, placement) = inputs[random.below(inputs.len())].clone();
                Instruction::Free { tensor, placement }
            }
            Instruction::Input { .. } => unreachable!("inputs come first"),
        };
        program.instructions.insert(at, free);
        let message = validate(&graph, &program).expect_err("not valid").to_string();
        prop_assert!(message.contains("it was freed and") || message.contains("cannot be freed"), "{message}");
    }

    #[test]
    fn what_is_valid_is_right(seed: u64) {
        let random = &mut Random(seed);
        let graph = some_divided(composed(perceptron(1, [6, 4, 5]), random), random);
        let mut program = random_program(&graph, random);
        if random.below(2) == 0 {
            program = remade(&program, random, 0.2);
        }
        mutate(&graph, &mut program, random);
        if validate(&graph, &program).is_ok() {
            prop_assert!(is_right(&graph, &program, random), "{program:?}");
        }
    }
}

#[test]
fn most_mutations_are_rejected() {
    let graph = perceptron(1, [6, 4, 5]);
    let rejected = (0..300).filter(|seed| {
        let random = &mut Random(*seed);
        let mut program = random_program(&graph, random);
        mutate(&graph, &mut program, random);
        validate(&graph, &program).is_err()
    });
    assert!(rejected.count() > 200);
}

/// `y = x w` and the gradient of `w` for the tangent `t`.
fn product() -> Graph {
    let mut builder = GraphBuilder::new(&[("batch", 4), ("k", 4), ("n", 4)]);
    let x = builder.input(InputKind::Input, "x", &[0, 1]);
    let w = builder.input(InputKind::Parameter, "w", &[1, 2]);
    let t = builder.input(InputKind::Tangent, "t", &[0, 2]);
    let y = builder.operator("y", &[x, w], &[0, 2], 1.0, &MATMUL);
    let g = builder.operator("g", &[x, t], &[1, 2], 1.0, &["S0 S0 -> P", "S1 R -> S0", "R S1 -> S1"]);
    builder.output(OutputKind::Output, "y", y, None);
    builder.output(OutputKind::Gradient, "w", g, Some(w));
    builder.finish()
}

const RIGHT: [&str; 10] = [
    "input x S0",
    "input w S1",
    "input t R",
    "convert w S1 R padded",
    "compute y S0 R -> S0",
    "convert t R S0",
    "compute g S0 S0 -> P",
    "convert g P S1 padded",
    "output y y S0",
    "output w g S1",
];

#[test]
fn what_is_freed_is_gone_until_it_is_made_again_as_another_value() {
    let graph = product();
    let with = |extra: &[(usize, &'static str)]| {
        let mut lines = RIGHT.to_vec();
        extra.iter().for_each(|(index, line)| lines.insert(*index, line));
        validate(&graph, &program(&graph, &lines)).map_err(|error| error.to_string())
    };
    // The gathered parameter goes once `y` is made, and `y` too; both are made again.
    let again = [
        (5, "free w R"),
        (6, "free y S0"),
        (8, "convert w S1 R exchange"),
        (9, "compute y S0 R -> S0"),
    ];
    let valid = with(&again).expect("valid");
    let y = |step: &Step| match step {
        Step::Compute { writes, .. } => writes[0],
        Step::Free { read } | Step::Output { read, .. } => *read,
        _ => unreachable!("neither makes nor reads y"),
    };
    let (first, second) = (y(&valid.steps[4]), y(&valid.steps[9]));
    assert_eq!(valid.values[first], valid.values[second]);
    assert_ne!(first, second);
    assert_eq!((y(&valid.steps[6]), y(&valid.steps[12])), (first, second));

    let refused = [
        (
            vec![(5, "free y S0"), (6, "free y S0")],
            "instruction 6 (free(%y:S0)): %y:S0 is needed, but it was freed",
        ),
        (vec![(4, "free y S0")], "%y:S0 is needed, but nothing of it is there"),
        (vec![(5, "free y R")], "%y:R is needed, but %y:S0 is there"),
        (
            vec![(4, "free w R")],
            "%w:R is needed, but it was freed and %w:S1 is there",
        ),
        (
            vec![(8, "free y S0")],
            "%y:S0 is needed, but it was freed and nothing of it is there",
        ),
        (vec![(7, "free x S0")], "%x:S0 is how the Input is stored"),
        (vec![(7, "free w S1")], "%w:S1 is how the Parameter is stored"),
        (vec![(7, "free t R")], "%t:R is how the Tangent is stored"),
        (vec![(5, "free w R"), (6, "input w R")], "already there"),
        (
            vec![
                (5, "free w R"),
                (6, "convert w S1 R padded"),
                (7, "convert w S1 R padded"),
            ],
            "gains nothing",
        ),
    ];
    for (extra, what) in refused {
        let message = with(&extra).expect_err("not valid");
        assert!(message.contains(what), "{message}");
    }
    assert!(with(&[(5, "free w R"), (7, "free t S0")]).is_err(), "g reads t's copy");
    assert!(with(&[(5, "free w R"), (8, "free t S0")]).is_ok());
}

/// Sums of several sizes are scattered one after another.
#[test]
fn collectives_under_way_keep_little_beside_their_largest_operand() {
    let sizes = [("a", 800), ("b", 80), ("c", 16), ("d", 40), ("e", 800)];
    let axes: Vec<(&str, u64)> = [("batch", 4)].into_iter().chain(sizes).collect();
    let mut builder = GraphBuilder::new(&axes);
    let x = builder.input(InputKind::Input, "x", &[0]);
    let w = builder.input(InputKind::Parameter, "w", &[1]);
    let mut lines = vec!["input x S0".to_owned(), "input w S0".to_owned()];
    for (axis, (name, _)) in sizes.iter().enumerate() {
        let sum = builder.operator(name, &[x], &[axis + 1], 1.0, &["S0 -> P"]);
        builder.output(OutputKind::Output, name, sum, None);
        lines.push(format!("compute {name} S0 -> P"));
        lines.push(format!("convert {name} P S0 grouped"));
        // Of what is stored and of sums nothing is kept.
        if axis == 0 {
            builder.output(OutputKind::Output, "w", w, None);
            lines.push("convert w S0 R grouped".to_owned());
        }
    }
    lines.push("output w w R".to_owned());
    lines.extend(sizes.map(|(name, _)| format!("output {name} {name} S0")));
    let graph = builder.finish();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let valid = validate(&graph, &program(&graph, &lines)).expect("a valid program");
    // 80 and 16 are less than an eighth of 800, with 40 more. Of these three only 40 is left, and is little beside 800.
    assert_eq!(valid.ended(&graph), [(3, 10), (6, 10), (8, 10)]);
}
