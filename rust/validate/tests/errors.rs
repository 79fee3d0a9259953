//! What errors name.

use super::*;

fn message(replaced: &[(usize, &str)]) -> String {
    let graph = product();
    let mut lines = RIGHT;
    replaced.iter().for_each(|(index, line)| lines[*index] = line);
    validate(&graph, &program(&graph, &lines))
        .expect_err("not valid")
        .to_string()
}

#[test]
fn errors_name_the_instruction_and_what_is_missing() {
    let graph = product();
    assert!(validate(&graph, &program(&graph, &RIGHT)).is_ok());
    let cases = [
        (
            vec![(3, "convert w S0 R padded")],
            "instruction 3",
            "%w:S0 is needed, but %w:S1 is there",
        ),
        (
            vec![(4, "compute y S1 S0 -> P")],
            "instruction 4",
            "%x:S1 is needed, but %x:S0 is there",
        ),
        (
            vec![(4, "compute y S0 R -> R")],
            "instruction 4",
            "offers no such choice",
        ),
        (vec![(2, "input t S0")], "instruction 2", "whole on every device"),
        (vec![(0, "input x P")], "instruction 0", "cannot be partial"),
        (vec![(2, "input w R")], "instruction 2", "already there"),
        (vec![(2, "input y R")], "instruction 2", "not an input"),
        (
            vec![(7, "convert g P S1 builtin")],
            "instruction 7",
            "cannot be carried out as builtin",
        ),
        (vec![(7, "convert g P S1")], "instruction 7", "needs an implementation"),
        (vec![(7, "convert g P S7 padded")], "instruction 7", "cannot be S7"),
        (
            vec![(9, "output w g P")],
            "instruction 9",
            "must end as it is stored, as %w:S1",
        ),
        (vec![(9, "output y y S0")], "instruction 9", "not yet read"),
        (vec![(9, "output other y S0")], "instruction 9", "no output \"other\""),
        (vec![(7, "input x S0")], "instruction 7", "already there"),
        (vec![(6, "compute y S0 R -> S0")], "instruction 6", "gains nothing"),
        (vec![(5, "convert w R S1")], "instruction 5", "gains nothing"),
    ];
    for (replaced, place, what) in cases {
        let message = message(&replaced);
        assert!(message.contains(place) && message.contains(what), "{message}");
    }
    let short = validate(&graph, &program(&graph, &RIGHT[..9]))
        .expect_err("not valid")
        .to_string();
    assert_eq!(
        short,
        "the program ends after 9 instructions, but output \"w\" (Gradient) is missing"
    );
    let nothing = validate(&graph, &Program::default())
        .expect_err("not valid")
        .to_string();
    assert!(
        nothing.contains("Parameter \"w\" has no input instruction"),
        "{nothing}"
    );
}

#[test]
fn names_and_axes_must_be_the_graphs() {
    let graph = product();
    type Edit = fn(&mut Instruction);
    let mut edits: Vec<(Edit, &str)> = Vec::new();
    edits.push((
        |instruction| {
            if let Instruction::Compute { target, .. } = instruction {
                *target = "aten.add".into();
            }
        },
        "is test.y, not aten.add",
    ));
    edits.push((
        |instruction| {
            if let Instruction::Compute { axis, .. } = instruction {
                *axis = Some("k".into());
            }
        },
        "offers no such choice",
    ));
    edits.push((
        |instruction| {
            if let Instruction::Compute { inputs, .. } = instruction {
                inputs.swap(0, 1);
            }
        },
        "the operands differ",
    ));
    for (edit, what) in edits {
        let mut program = program(&graph, &RIGHT);
        edit(&mut program.instructions[4]);
        let message = validate(&graph, &program).expect_err("not valid").to_string();
        assert!(message.contains("instruction 4") && message.contains(what), "{message}");
    }
    let mut wrong_axis = program(&graph, &RIGHT);
    if let Instruction::Convert { axis, .. } = &mut wrong_axis.instructions[3] {
        *axis = Some("k".into());
    }
    let message = validate(&graph, &wrong_axis).expect_err("not valid").to_string();
    assert!(message.contains("the axis is wrong, expected n"), "{message}");
}

#[test]
fn composites_of_equal_placements_are_told_apart_by_name() {
    let mut builder = GraphBuilder::new(&[("batch", 4)]);
    let x = builder.input(InputKind::Input, "x", &[0]);
    let y = builder.operator("y", &[x], &[0], 1.0, &["S0 -> S0"]);
    builder.composite(y, "one", "S0 -> S0", &[]);
    builder.composite(y, "other", "S0 -> S0", &[]);
    builder.output(OutputKind::Output, "y", y, None);
    let graph = builder.finish();
    let choice = |name: Option<&str>| {
        let lines = ["input x S0", "compute y S0 -> S0", "output y y S0"];
        let mut program = program(&graph, &lines);
        if let Instruction::Compute { composite, .. } = &mut program.instructions[1] {
            *composite = name.map(String::from);
        }
        validate(&graph, &program).map(|valid| match valid.steps[1] {
            Step::Compute { choice, .. } => choice,
            _ => unreachable!("the second step computes"),
        })
    };
    assert_eq!(choice(None).expect("valid"), 1);
    assert_eq!(choice(Some("one")).expect("valid"), 2);
    assert_eq!(choice(Some("other")).expect("valid"), 3);
    let message = choice(Some("third")).expect_err("not valid").to_string();
    assert!(
        message.contains("composite third") && message.contains("offers no such choice"),
        "{message}"
    );
}
