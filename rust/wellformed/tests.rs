use super::*;
use crate::graph::{Choice, Collective};
use crate::program::Conversion;
use crate::testing::{perceptron, placements};

#[test]
fn a_graph_survives_its_json() {
    let graph = perceptron(2, [8, 4, 6]);
    let json = serde_json::to_vec(&graph).expect("JSON");
    assert_eq!(Graph::from_json(&json).expect("a valid graph"), graph);
    let names = graph.names();
    assert_eq!(graph.tensors[names.tensors["gh0"]].name, "gh0");
    assert_eq!(graph.operators[names.operators["gh0"]].name, "gh0");
    assert_eq!(names.axes["inner"], 2);
}

/// Makes a choice of the first operator a composite with this collective inside.
fn inside(graph: &mut Graph, conversion: Conversion, bytes: f64, axis: Option<usize>) {
    let choice = &mut graph.operators[0].choices[1];
    choice.composite = Some("norm".into());
    choice.collectives = vec![Collective {
        conversion,
        bytes,
        axis,
    }];
}

#[test]
fn collectives_inside_may_be_left_out_of_the_json() {
    let plain: Choice = serde_json::from_str(r#"{"inputs": [], "outputs": []}"#).expect("a choice");
    assert_eq!(plain, Choice::default());
    let text = r#"{"inputs": [], "outputs": [], "composite": "norm", "collectives": [{"conversion": "all_reduce", "bytes": 4}]}"#;
    let composite: Choice = serde_json::from_str(text).expect("a choice");
    assert_eq!(composite.parts(), 2.0);
    assert!(serde_json::from_str::<Choice>(&text.replace("bytes", "byte")).is_err());
}

type Edit = fn(&mut Graph);

#[test]
fn errors_name_what_is_wrong() {
    let cases: Vec<(Edit, &str)> = vec![
        (|graph| graph.format = "hap-graph-2".into(), "format"),
        (
            |graph| graph.axes[1].name = "batch".into(),
            "two axes are named \"batch\"",
        ),
        (|graph| graph.axes[1].size = 0, "axis \"hidden\" has no units"),
        (
            |graph| graph.axes[1].parts = vec![1],
            "axis \"hidden\" is a run with 1, which is no axis of its own",
        ),
        (
            |graph| graph.axes[1].parts = vec![0, 3],
            "axis \"hidden\" is a run with 3, which is no axis of its own",
        ),
        (
            |graph| graph.axes[1].of = Some(2),
            "axis \"hidden\" is a split class of 2, which is no axis of as many units",
        ),
        (
            |graph| {
                graph.axes[1].of = Some(2);
                graph.axes[1].size = 6;
            },
            "does not have axis \"hidden\" as often as \"inner\", which it is a class of",
        ),
        (
            |graph| graph.axes[1].parts = vec![0, 2],
            "axis \"hidden\" has 4 units, which is not the product",
        ),
        (
            |graph| graph.tensors[1].name = "x".into(),
            "two tensors are named \"x\"",
        ),
        (
            |graph| graph.operators[1].name = "h0".into(),
            "two operators are named \"h0\"",
        ),
        (
            |graph| graph.tensors[0].occurrences[0] = 3,
            "\"x\" has axis 3, but there are 3 axes",
        ),
        (|graph| graph.tensors[0].bytes = f64::NAN, "\"x\": bytes is NaN"),
        (
            |graph| graph.tensors[0].dtype = "floaty".into(),
            "unknown element type, \"floaty\"",
        ),
        (|graph| graph.inputs[0].tensor = 99, "tensor 99, which does not exist"),
        (
            |graph| graph.inputs[0].tensor = 1,
            "writes \"first0\", which is already there",
        ),
        (
            |graph| drop(graph.inputs.remove(0)),
            "\"x\" is written by no input and no operator",
        ),
        (
            |graph| graph.operators[0].operands[0] = 99,
            "reads tensor 99, which does not exist",
        ),
        (
            |graph| graph.operators[0].results[0] = 99,
            "writes tensor 99, which does not exist",
        ),
        (
            |graph| graph.operators.swap(0, 1),
            "\"a0\" reads \"h0\" before it is written",
        ),
        (|graph| graph.operators[0].flops = -1.0, "\"h0\": flops is -1"),
        (
            |graph| graph.operators[0].operand_bytes.truncate(1),
            "operand_bytes has 1 entries, expected 2",
        ),
        (
            |graph| graph.operators[0].result_bytes[0] = -1.0,
            "\"h0\": result_bytes is -1",
        ),
        (|graph| graph.operators[0].choices.clear(), "\"h0\" has no choices"),
        (
            |graph| drop(graph.operators[0].choices.remove(0)),
            "\"h0\": choice 0 is not the replicated one",
        ),
        (
            |graph| drop(graph.operators[0].choices[1].inputs.pop()),
            "choice 1, inputs: 1 placements, expected 2",
        ),
        (
            |graph| graph.operators[0].choices[1].outputs.clear(),
            "choice 1, outputs: 0 placements, expected 1",
        ),
        (
            |graph| graph.operators[0].choices[1].outputs[0] = placements("S2"),
            "\"h0\" cannot be S2",
        ),
        (
            |graph| graph.operators[0].choices[1].outputs[0].clear(),
            "placed on 0 levels",
        ),
        (
            |graph| graph.operators[0].choices[1].outputs[0] = placements("S1"),
            "shared along batch",
        ),
        (
            |graph| graph.operators[0].choices[1].axis = None,
            "shared along no axis",
        ),
        (|graph| graph.operators[0].choices[4].axis = Some(9), "axis is 9"),
        (|graph| graph.tensors[3].summable = false, "\"h0\" cannot be partial"),
        (
            |graph| graph.operators[0].choices[0].composite = Some("norm".into()),
            "choice 0 is not the replicated one",
        ),
        (
            |graph| {
                inside(graph, Conversion::AllReduce, 1.0, None);
                graph.operators[0].choices[1].composite = None;
            },
            "choice 1: it has collectives, but is no composite",
        ),
        (
            |graph| inside(graph, Conversion::Slice, 1.0, None),
            "collective 0: slice moves nothing",
        ),
        (
            |graph| inside(graph, Conversion::AllReduce, -1.0, None),
            "collective 0: bytes is -1",
        ),
        (
            |graph| inside(graph, Conversion::AllReduce, 1.0, Some(0)),
            "all_reduce cannot have the axis 0",
        ),
        (
            |graph| inside(graph, Conversion::AllGather, 1.0, Some(3)),
            "all_gather cannot have the axis 3",
        ),
        (
            |graph| inside(graph, Conversion::Resplit, 1.0, Some(0)),
            "re_split cannot be inside",
        ),
        (
            |graph| inside(graph, Conversion::AllToAll, 1.0, None),
            "all_to_all cannot have the axis none",
        ),
        (|graph| graph.outputs[0].tensor = 99, "output \"loss\" is tensor 99"),
        (
            |graph| graph.outputs[1].of = None,
            "which is no input of kind Parameter",
        ),
        (|graph| graph.outputs[1].of = Some(1), "they must agree"),
        (
            |graph| graph.outputs[1].kind = OutputKind::Output,
            "which is no input of kind Tangent",
        ),
        (
            |graph| graph.outputs[1].name = "first0".into(),
            "two outputs of kind Gradient named \"first0\"",
        ),
    ];
    for (edit, what) in cases {
        let mut graph = perceptron(1, [8, 4, 6]);
        edit(&mut graph);
        let message = graph.validate().expect_err(what).to_string();
        assert!(message.contains(what), "{message}\nexpected: {what}");
    }
}

#[test]
fn elements_have_the_size_that_their_type_says() {
    let cases = [
        ("float32", 4.0),
        ("bfloat16", 2.0),
        ("float8_e4m3fn", 1.0),
        ("complex64", 8.0),
        ("bool", 1.0),
    ];
    for (dtype, bytes) in cases {
        assert_eq!(element_bytes(dtype), Some(bytes), "{dtype}");
    }
    assert_eq!(element_bytes("float"), None);
}
