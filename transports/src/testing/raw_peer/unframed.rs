//! Bytes on a connection for data that are no frame, or no frame at that place.

use super::State;

impl State {
    /// Returns bytes that break the format of frames.
    pub(super) fn unframed(&mut self) -> Vec<u8> {
        let tag = self.tag().to_bytes();
        let lane = self.random.below(self.lanes) as u16;
        let number = self.number();
        let header = |kind: u8, credit: u8, lane: u16, bytes: u32| {
            let mut header = vec![kind, credit];
            header.extend(lane.to_le_bytes());
            header.extend(bytes.to_le_bytes());
            header.extend(tag);
            header
        };
        let slot_bytes = self.slot_bytes as u32;
        let valid = self.random.choose(&[0, 4, slot_bytes]);
        match self.random.below(11) {
            0 => header(number as u8, 0, lane, 4),
            1 => header(b'm', 0, self.random.choose(&[self.lanes as u16, u16::MAX]), 0),
            2 => header(b'c', self.random.choose(&[0, 1, 255]), lane, number as u32)
                .repeat(1 + number as usize % 5),
            3 => header(b'm', 0, lane, self.random.choose(&[slot_bytes + 1, 1 << 20, u32::MAX])),
            4 => header(b'm', 0, lane, slot_bytes),
            5 => header(b'm', 0, lane, valid)[..self.random.below(40)].to_vec(),
            6 => [header(b'm', 0, lane, slot_bytes), vec![1; self.random.below(self.slot_bytes)]].concat(),
            // More messages than there is credit for.
            7 => [header(b'm', 0, lane, valid), vec![2; valid as usize]].concat().repeat(100),
            8 => {
                let bytes = self.random.below(5_000);
                self.noise(bytes)
            }
            9 => [header(b'm', 0, lane, valid), vec![4; valid as usize]].concat(),
            _ => header(b'c', 1, lane, 0).repeat(1_000),
        }
    }
}
