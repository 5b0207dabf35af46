//! Properties of every history.

use proptest::prelude::*;

use super::*;

proptest! {
    /// Nodes become sick and well, repairs begin and end, at any time: there are never more repairs under way than the budget has.
    #[test]
    fn the_budget_is_never_exceeded(
        total in 1_usize..20,
        budget in 0_u32..5,
        moves in prop::collection::vec((0_usize..20, 0_u8..4, 1_i64..40), 1..60),
    ) {
        let spec = json!({
            "policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "5m"}],
            "unhealthyLimit": "100%", "budgets": [{"nodes": budget}],
        });
        let mut world = World::new(policy_of(spec), (0..total).map(|number| node(&format!("n{number}"))));
        // Nothing is stuck here.
        world.settings.stuck_after = SignedDuration::from_hours(100_000);
        let mut minute = 0;
        for (which, what, minutes) in moves {
            minute += minutes;
            if world.nodes.is_empty() {
                break;
            }
            let index = which % world.nodes.len();
            match what {
                0 => world.nodes[index].0.conditions.push(condition("BadNode", Status::False, at(minute))),
                1 => world.nodes[index].0.conditions.truncate(1),
                2 => {
                    let uid = world.nodes[index].0.node.uid.clone();
                    if world.policy.status.repair_of(&uid).is_some() {
                        world.nodes.remove(index);
                    }
                }
                _ => {}
            }
            let now = at(minute);
            for name in world.survey(now).to_count {
                world.pods.insert(name, 1);
            }
            let idle = world.survey(now).idle;
            world.idle.retain(|uid, _| idle.contains(uid));
            for uid in idle {
                world.idle.entry(uid).or_insert(now);
            }
            world.reserve(now);
            prop_assert!(world.policy.status.repairs.len() <= budget as usize);
            // Every node that is touched is listed in the policy's status.
            for index in 0..world.nodes.len() {
                let decision = world.judge(index, now);
                let touched = decision.verdict.actions().iter().any(crate::step::Step::is_disruptive);
                let uid = &world.nodes[index].0.node.uid;
                prop_assert!(!touched || world.policy.status.repair_of(uid).is_some());
            }
        }
    }
}
