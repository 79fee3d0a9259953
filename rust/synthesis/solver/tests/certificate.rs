//! Certificates that are wrong are refused.

use super::*;

#[test]
fn no_number_in_a_certificate_absorbs_costs() {
    // Sums with the numbers that move lose the costs beside them.
    let small = problem(&[2, 2], vec![factor(&[0, 1], &[9.0, 16.0, 30.0, 30.0])]);
    let shift = |moved: f64| Step::Shift {
        scope: vec![0, 1],
        costs: vec![-moved, -moved, 0.0, 0.0],
    };
    let refused = |problem: &Problem, assignment: &[usize], steps: Vec<Step>| {
        let cost = problem.cost(assignment);
        let certificate = Certificate {
            assignment: assignment.to_vec(),
            cost,
            steps,
            bound: cost,
        };
        check(problem, &certificate, TOLERANCE).is_err()
    };
    for moved in [1e15, 1e17, -1e17, 1.2e17, 1e300, f64::MAX] {
        assert!(refused(&small, &[0, 1], vec![shift(moved)]), "{moved}");
        assert!(refused(&small, &[0, 1], vec![shift(moved), shift(-moved)]), "{moved}");
        assert!(!refused(&small, &[0, 0], vec![]));
    }
    let constants = [factor(&[], &[1e12]), factor(&[], &[-1e12]), factor(&[0], &[1.0, 2.0])];
    assert!(refused(&problem(&[2], constants.to_vec()), &[1], vec![]));
    assert!(!refused(&problem(&[2], constants.to_vec()), &[0], vec![]));
}

#[test]
fn tampered_certificates_are_refused() {
    let problem = ladder(40, 4, 6, 5);
    let certificate = solved(&problem, &Limits::default()).unwrap().certificate;
    let refused = |change: &dyn Fn(&mut Certificate)| {
        let mut tampered = certificate.clone();
        change(&mut tampered);
        assert_ne!(tampered, certificate, "the change must change something");
        check(&problem, &tampered, TOLERANCE).unwrap_err()
    };
    let is_drop = |step: &Step| matches!(step, Step::Drop { .. });
    let first_drop = certificate
        .steps
        .iter()
        .position(is_drop)
        .expect("dual ascent is needed here");
    refused(&|c| c.bound *= 1.001);
    assert!(matches!(refused(&|c| c.cost *= 0.999), CertificateError::Cost { .. }));
    refused(&|c| c.steps.truncate(first_drop));
    refused(&|c| c.assignment[0] = 6);
    refused(&|c| {
        c.assignment.pop();
    });
    // A label of the best assignment is dropped.
    refused(&|c| {
        c.steps.insert(
            0,
            Step::Drop {
                variable: 0,
                labels: vec![c.assignment[0]],
            },
        )
    });
    // Messages are changed, or left out.
    refused(&|c| {
        for step in &mut c.steps {
            if let Step::Shift { costs, .. } = step {
                costs[0] += 1.0;
            }
        }
    });
    refused(&|c| c.steps.retain(|step| !matches!(step, Step::Shift { .. })));
    refused(&|c| c.steps.insert(0, Step::Fix { variable: 0 }));
    refused(&|c| {
        c.steps.insert(
            0,
            Step::Join {
                scope: vec![0],
                into: vec![1, 2],
            },
        )
    });
    refused(&|c| c.steps.insert(0, Step::Eliminate { variable: 40 }));
}
