//! Re-splits between the classes of one index.

use super::*;

#[test]
fn re_splits_lead_between_the_classes_of_one_index() {
    let graph = divided(&product(), 0);
    let lines = |converted: &'static str| {
        let mut lines = RIGHT.to_vec();
        lines[4] = "compute y S0 R -> S0";
        lines[8] = converted;
        lines.insert(9, "output y y S2");
        program(&graph, &lines)
    };
    let right = lines("convert y S0 S2 exchange");
    assert!(validate(&graph, &right).is_ok());
    assert_eq!(
        right.instructions[8].to_string(),
        "%y:S2 = re_split(%y:S0, axis=batch, exchange)"
    );
    let message = |wrong: &Program| validate(&graph, wrong).expect_err("not valid").to_string();
    assert!(message(&lines("convert y S0 S2 padded")).contains("cannot be carried out as padded"));
    assert!(message(&lines("convert y S1 S2 exchange")).contains("%y:S1 is needed"));
    let mut wrong = right.clone();
    if let Instruction::Convert { conversion, .. } = &mut wrong.instructions[8] {
        *conversion = Conversion::AllToAll;
    }
    assert!(message(&wrong).contains("all_to_all does not lead from the one placement to the other"));
}
