use crate::engine::plan::eager::*;
use crate::op_desc::OpKind;
use crate::schedule::{
    Algorithm, Collective, GroupSpec, PeerAccess, ProgramBuilder, chunk_at, input, output, window,
};
use unisono_reducers::{DType, PostOp, ReduceKind, Scalar, Store};

fn arithmetic(plain: bool) -> Arithmetic {
    Arithmetic {
        dtype: DType::U8,
        op: ReduceKind::Sum,
        factor: (!plain).then_some(Scalar::Uint(3)),
        partial: PostOp::Identity,
        finish: PostOp::Identity,
        store: Store::Cached,
        custom: None,
    }
}

/// Returns the plan of rank 1 of 3. `bases` makes the operation in-place.
fn eager_plan(
    collective: Collective,
    name: &str,
    bases: Option<(usize, usize)>,
    plain: bool,
) -> Option<EagerPlan> {
    let row = crate::schedule::find(collective, name).unwrap();
    let program = (row.build)(&GroupSpec::new(3), 1);
    let call = OpDesc::new(0, OpKind::Collective(collective), DType::U8, None, 0, 24);
    let key = PlanKey { op: call, input_bytes: 24, output_bytes: 24, bases };
    EagerPlan::new(
        key,
        key.op,
        program,
        SlotFit::new(3, 24, true, 3).unwrap(),
        SlotTuning::Cached,
        arithmetic(plain),
        1,
    )
}

#[test]
fn eager_plan_exists_for_single_signal_window_algorithms() {
    for row in Algorithm::ALL.iter().filter(|row| row.peer_access == PeerAccess::Window) {
        let found = eager_plan(row.collective, row.name, None, true).is_some();
        assert_eq!(
            found,
            !["twoshot", "inplace_ring"].contains(&row.name),
            "{} {}",
            row.collective,
            row.name
        );
    }
    assert!(eager_plan(Collective::AllReduce, "ring", None, true).is_none());
}

#[test]
fn own_operand_is_read_in_place_when_possible() {
    let slot = |rank, offset| Operand::Slot { rank, at: offset };
    let operands =
        |name, bases, plain| eager_plan(Collective::AllReduce, name, bases, plain).unwrap().operands;
    assert_eq!(operands("oneshot", None, true), [slot(0, 0), Operand::Input(0), slot(2, 0)]);
    assert_eq!(operands("oneshot", Some((0, 0)), true), [slot(0, 0), Operand::Output, slot(2, 0)]);
    assert_eq!(operands("oneshot", Some((0, 24)), true), [slot(0, 0), slot(1, 0), slot(2, 0)]);
    assert_eq!(operands("oneshot", None, false), [slot(0, 0), slot(1, 0), slot(2, 0)]);
}

#[test]
fn own_operand_unread_by_peers_uses_scratch_slot() {
    let packed = SlotInstr::Pack { from: 24..48, at: 48 };
    let own_in_slot = Operand::Slot { rank: 1, at: 48 };
    for (bases, plain, operand) in [
        (None, true, Operand::Input(24)),
        (None, false, own_in_slot),
        (Some((0, 24)), true, Operand::Output),
        (Some((0, 24)), false, own_in_slot),
    ] {
        let plan = eager_plan(Collective::ReduceScatter, "window_direct", bases, plain).unwrap();
        assert_eq!(plan.instrs.contains(&packed), operand == own_in_slot, "{:?}", plan.instrs);
        assert!(plan.operands.contains(&operand), "{:?}", plan.operands);
    }
}

#[test]
fn own_operand_is_not_read_from_overwritten_slot() {
    let mut builder = ProgramBuilder::new(1);
    builder.copy(input(1), window(0)).copy(input(0), window(0)).signal().wait(0, 1);
    builder.reduce(vec![chunk_at(0, window(0)), chunk_at(1, input(1))], output(0), true);
    let call = OpDesc::new(0, OpKind::Collective(Collective::ReduceScatter), DType::U8, None, 0, 24);
    let key = PlanKey { op: call, input_bytes: 24, output_bytes: 24, bases: None };
    let fit = SlotFit::new(1, 24, true, 2).unwrap();
    let program = builder.finish(0, 1);
    let plan = EagerPlan::new(key, call, program, fit, SlotTuning::Cached, arithmetic(false), 1).unwrap();
    assert_eq!(plan.operands, [Operand::Slot { rank: 0, at: 0 }, Operand::Slot { rank: 1, at: 24 }]);
    assert!(plan.instrs.contains(&SlotInstr::Pack { from: 24..48, at: 24 }), "{:?}", plan.instrs);
}

#[test]
fn own_operand_overwritten_and_unpacked_is_rejected() {
    assert!(eager_plan(Collective::ReduceScatter, "window_direct", Some((0, 8)), true).is_none());
}

#[test]
fn pack_and_copy_of_long_chunk_is_fused() {
    let bytes = FUSE_COPY_MIN_BYTES;
    let acts = |bytes: usize, bases: Option<(usize, usize)>| {
        let row = crate::schedule::find(Collective::AllGather, "window_direct").unwrap();
        let program = (row.build)(&GroupSpec::new(2), 1);
        let call = OpDesc::new(0, OpKind::Collective(Collective::AllGather), DType::U8, None, 0, 0);
        let key = PlanKey { op: call, input_bytes: bytes, output_bytes: bytes, bases };
        let fit = SlotFit::new(1, bytes, false, 2).unwrap();
        EagerPlan::new(key, call, program, fit, SlotTuning::Cached, arithmetic(true), 1).unwrap().instrs
    };
    let spread = SlotInstr::PackAndCopy { from: 0..bytes, at: 0, into: bytes..2 * bytes };
    assert_eq!(acts(bytes, None)[..2], [spread, SlotInstr::Publish]);
    let apart = [SlotInstr::Pack { from: 0..bytes, at: 0 }, SlotInstr::Publish];
    assert_eq!(acts(bytes, Some((0, 0)))[..2], apart);
    assert_eq!(acts(bytes - 8, None)[0], SlotInstr::Pack { from: 0..bytes - 8, at: 0 });
}

#[test]
fn slot_fit_picks_smallest_class_or_none() {
    let slot = |chunks, bytes, spare| SlotFit::new(chunks, bytes, spare, 2).map(|fit| fit.slot_class);
    assert_eq!([slot(7, 4, false), slot(7, 4, true)], [Some(SlotClass::Inline), Some(SlotClass::HalfPage)]);
    assert_eq!([slot(1, 8188, true), slot(1, 8193, true)], [Some(SlotClass::K16), Some(SlotClass::K32)]);
    assert_eq!(SlotFit::new(1, 8188, true, 2).map(|fit| fit.stride), Some(8192));
    // The half-page slots of two ranks leave room behind the payload.
    let half_page =
        |bytes, ranks| SlotFit::new(1, bytes, false, ranks).map(|fit| fit.slot_class == SlotClass::HalfPage);
    assert_eq!(
        [half_page(1536, 2), half_page(1537, 2), half_page(1537, 3)],
        [Some(true), Some(false), Some(true)]
    );
    assert_eq!([slot(1, 128 << 10, false), slot(1, 128 << 10, true)], [Some(SlotClass::K128), None]);
}
