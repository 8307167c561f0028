use super::*;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::PathBuf;
use unisono_nn::batch::PADDING;
use unisono_nn::error::Error;
use unisono_parallel::context_parallel::{Placement, SequenceChunk};

/// Temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("unisono-data-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sorted(batches: impl IntoIterator<Item = Vec<u64>>) -> Vec<u64> {
    let mut samples: Vec<u64> = batches.into_iter().flatten().collect();
    samples.sort_unstable();
    samples
}

fn shares(sampler: &Sampler, ranks: usize) -> Vec<Sampler> {
    (0..ranks).map(|rank| sampler.clone().with_shard(rank, ranks).unwrap()).collect()
}

#[test]
fn permutation_is_bijective_for_any_count() {
    for count in (1..200).chain([255, 256, 257, 1000, 4097]) {
        let order = Permutation::new(count, count ^ 5);
        let seen: HashSet<u64> = (0..count).map(|index| order.at(index)).collect();
        assert_eq!(seen.len() as u64, count);
        assert!(seen.iter().all(|&value| value < count));
    }
    let huge = Permutation::new(u64::MAX, 1);
    assert_ne!(huge.at(0), huge.at(1));
}

#[test]
fn permutation_is_uniform_for_small_counts() {
    let mut seen = BTreeMap::<Vec<u64>, u32>::new();
    for seed in 0..24_000 {
        let order = Permutation::new(4, seed);
        *seen.entry((0..4).map(|index| order.at(index)).collect()).or_default() += 1;
    }
    assert_eq!(seen.len(), 24);
    // Each count has mean 1000 and standard deviation 31.
    assert!(seen.values().all(|count| (850..1150).contains(count)), "{seen:?}");
}

#[test]
fn shards_cover_epoch_without_overlap() {
    for (samples, batch, ranks) in [(100, 20, 4), (103, 12, 3), (7, 7, 7), (64, 1, 1)] {
        let sampler = Sampler::new(samples, batch, Some(3), LastBatch::Drop).unwrap();
        let seen = sorted(shares(&sampler, ranks).into_iter().flatten());
        assert_eq!(seen.len() as u64, samples / batch * batch);
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "a sample came twice");

        let sampler = Sampler::new(samples, batch, Some(3), LastBatch::Pad).unwrap();
        assert_eq!(sampler.clone().count() as u64, sampler.batches_per_epoch());
        let seen = sorted(shares(&sampler, ranks).into_iter().flatten());
        assert_eq!(seen.len() as u64, samples.next_multiple_of(batch));
        let distinct: HashSet<u64> = seen.into_iter().collect();
        assert_eq!(distinct.len() as u64, samples, "a sample is missing");
    }
}

#[test]
fn ranks_see_slices_of_global_batch() {
    let mut uncut = Sampler::new(50, 12, Some(9), LastBatch::Drop).unwrap();
    let mut ranks = shares(&uncut, 4);
    for _ in 0..20 {
        let big = uncut.next_or_new_epoch();
        let small: Vec<u64> = ranks.iter_mut().flat_map(Sampler::next_or_new_epoch).collect();
        assert_eq!(big, small);
    }
    assert_eq!(uncut.position(), Position { epoch: 4, sample: 48 });
}

#[test]
fn order_depends_on_epoch_and_seed() {
    let order = |seed, epoch| {
        let mut sampler = Sampler::new(40, 40, seed, LastBatch::Drop).unwrap();
        sampler.set_epoch(epoch);
        sampler.next().unwrap()
    };
    assert_eq!(order(Some(1), 2), order(Some(1), 2));
    assert_ne!(order(Some(1), 2), order(Some(1), 3));
    assert_ne!(order(Some(1), 2), order(Some(2), 2));
    assert!(order(None, 2).into_iter().eq(0..40));
}

#[test]
fn sampler_resumes_mid_epoch_on_other_rank_count() {
    for tail in [LastBatch::Drop, LastBatch::Pad] {
        let uncut = Sampler::new(100, 12, Some(5), tail).unwrap();
        let mut four_ranks = shares(&uncut, 4);
        for _ in 0..11 {
            four_ranks.iter_mut().for_each(|rank| drop(rank.next_or_new_epoch()));
        }
        let position = four_ranks[3].position();
        assert!(four_ranks.iter().all(|rank| rank.position() == position) && position.epoch == 1);
        let mut six_ranks = shares(&uncut, 6);
        six_ranks.iter_mut().for_each(|rank| rank.resume(position).unwrap());
        for _ in 0..20 {
            let four: Vec<u64> = four_ranks.iter_mut().flat_map(Sampler::next_or_new_epoch).collect();
            let six: Vec<u64> = six_ranks.iter_mut().flat_map(Sampler::next_or_new_epoch).collect();
            assert_eq!(four, six);
        }
    }
}

#[test]
fn sampler_resumes_with_other_batch_size() {
    let mut saved = Sampler::new(100, 12, Some(5), LastBatch::Drop).unwrap();
    let seen = sorted([saved.next_or_new_epoch(), saved.next_or_new_epoch()]);
    let mut resumed = Sampler::new(100, 4, Some(5), LastBatch::Drop).unwrap();
    resumed.resume(saved.position()).unwrap();
    assert_eq!(sorted(resumed.chain([seen])), (0..100).collect::<Vec<_>>());
}

#[test]
fn padded_epoch_stays_finished_for_other_batch_size() {
    let mut saved = Sampler::new(10, 4, Some(5), LastBatch::Pad).unwrap();
    saved.by_ref().for_each(drop);
    let mut resumed = Sampler::new(10, 5, Some(5), LastBatch::Pad).unwrap();
    resumed.resume(saved.position()).unwrap();
    assert_eq!((resumed.next(), resumed.next_or_new_epoch().len(), resumed.position().epoch), (None, 5, 1));
}

#[test]
fn invalid_batches_are_rejected() {
    let text = |error: Option<Error>| error.unwrap().to_string();
    assert_eq!(text(Sampler::new(5, 8, None, LastBatch::Drop).err()), "5 samples do not make one batch of 8");
    assert!(Sampler::new(5, 8, None, LastBatch::Pad).is_ok());
    let sampler = Sampler::new(50, 8, None, LastBatch::Drop).unwrap();
    assert_eq!(text(sampler.clone().with_shard(0, 3).err()), "a batch of 8 has no part 0 of 3 equal ones");
    let result = sampler.clone().resume(Position { epoch: 0, sample: 51 });
    assert!(text(result.err()).contains("belongs to other data"));
}

#[test]
fn token_file_round_trips_every_width() {
    let folder = Folder::new("widths");
    for (name, most) in [("a.u8", 255), ("a.u16", 65_535), ("a.bin", 65_535), ("a.u32", u32::MAX - 1)] {
        let path = folder.0.join(name);
        let tokens: Vec<u32> = (0..3000).map(|index| index * 7919 % most).chain([most]).collect();
        TokenFile::write(&path, tokens.iter().copied()).unwrap();
        let file = TokenFile::open(&path, most + 1).unwrap();
        let mut found = vec![0; 2999];
        file.read(2, &mut found).unwrap();
        assert_eq!((file.count(), &found[..]), (3001, &tokens[2..]), "{name}");
        assert!(file.read(3, &mut found).unwrap_err().to_string().contains(name));
    }
}

#[test]
fn invalid_token_files_are_rejected() {
    let folder = Folder::new("refused");
    let error = |result: unisono_nn::Result<()>| result.unwrap_err().to_string();
    let open = |path: &PathBuf| TokenFile::open(path, 10).map(drop);
    assert!(error(open(&folder.file("x.txt", "abc"))).ends_with(".bin (two bytes)"));
    assert!(
        error(open(&folder.file("odd.u16", "abc")))
            .ends_with("3 bytes are not a whole number of tokens of size 2")
    );
    assert!(error(open(&folder.0.join("none.u8"))).contains("none.u8"));
    let write = TokenFile::write(&folder.0.join("w.u8"), [1, 256]);
    assert!(error(write).ends_with("token 256 does not fit in 1 bytes: .u32 has four"));
    let file = TokenFile::open(&folder.file("y.u8", [1, 2, 10]), 10).unwrap();
    assert!(error(file.read(0, &mut [0; 3])).ends_with("token 2 is 10; the vocabulary has 10"));
}

#[test]
fn token_beyond_the_vocabulary_is_found_by_one_rank() {
    let folder = Folder::new("examined");
    // Three pieces of 1 MiB, of which the last one is short.
    for (name, width) in [("x.u8", 1), ("x.u16", 2), ("x.u32", 4)] {
        let (count, bad) = ((2 << 20) / width + 5, (1 << 20) / width + 3);
        let path = folder.0.join(name);
        let examine = |vocabulary, bad: Option<usize>| {
            let token = |index: usize| if Some(index) == bad { 200 } else { index as u32 % 100 };
            TokenFile::write(&path, (0..count).map(token)).unwrap();
            let file = TokenFile::open(&path, vocabulary).unwrap();
            let mut shown = Vec::new();
            let parts = [0, 1].map(|rank| {
                let result = file.examine(rank, 2, &mut |done, pieces| shown.push((done, pieces)));
                result.map_err(|error| error.to_string())
            });
            (parts, shown)
        };
        assert_eq!(examine(100, None), ([Ok(()), Ok(())], vec![(1, 3), (3, 3), (2, 3)]), "{name}");
        let ([first, second], _) = examine(200, Some(bad));
        assert!(first.is_ok(), "{name}: rank 0 has the first and the third piece");
        let told = format!("{name}: token {bad} is 200; the vocabulary has 200");
        assert!(second.as_ref().is_err_and(|error| error.ends_with(&told)), "{name}: {second:?}");
        let ([first, second], _) = examine(200, Some(count - 1));
        assert!(first.is_err() && second.is_ok(), "{name}");
        let (parts, shown) = examine(if width == 1 { 256 } else { 201 }, Some(bad));
        assert_eq!((parts, shown.len()), ([Ok(()), Ok(())], if width == 1 { 0 } else { 3 }), "{name}");
    }
}

#[test]
fn windows_make_every_token_a_target_once() {
    let tokens: Vec<u16> = (0..11).collect();
    let windows = TokenWindows::new(tokens, 3).unwrap();
    assert_eq!(windows.count(), 3);
    let batch = windows.batch(&[2, 0], SequenceChunk::WHOLE).unwrap();
    assert_eq!(batch.inputs, [6, 7, 8, 0, 1, 2]);
    assert_eq!(batch.targets, [7, 8, 9, 1, 2, 3]);
    assert!(windows.batch(&[3], SequenceChunk::WHOLE).is_err());
    let last = windows.batch(&[2, 0], SequenceChunk::new(2, 3)).unwrap();
    assert_eq!((&last.inputs[..], &last.targets[..], last.sequence), (&[8, 2][..], &[9, 3][..], 1));
    let uneven = windows.batch(&[0], SequenceChunk::new(0, 2)).unwrap_err().to_string();
    assert_eq!(uneven, "a sequence of 3 has no chunk 0 of 2 equal ones");
    let error = TokenWindows::new(vec![1u16, 2, 3], 3).err().unwrap();
    assert_eq!(error.to_string(), "3 tokens do not make one window of 3 + 1");
}

#[test]
fn padded_windows_have_equal_chunks_and_no_more_targets() {
    let tokens: Vec<u16> = (0..11).collect();
    let windows = TokenWindows::new(tokens, 3).unwrap();
    let chunk = |index, count, padding| SequenceChunk { padding, ..SequenceChunk::new(index, count) };
    let first = windows.batch(&[2, 0], chunk(0, 2, 1)).unwrap();
    assert_eq!((&first.inputs[..], &first.targets[..]), (&[6, 7, 0, 1][..], &[7, 8, 1, 2][..]));
    let last = windows.batch(&[2, 0], chunk(1, 2, 1)).unwrap();
    assert_eq!((&last.inputs[..], &last.targets[..]), (&[8, 0, 2, 0][..], &[9, PADDING, 3, PADDING][..]));
    let none = windows.batch(&[2], chunk(3, 4, 5)).unwrap();
    assert_eq!((&none.inputs[..], &none.targets[..], none.sequence), (&[0; 2][..], &[PADDING; 2][..], 2));
    for placement in [Placement::Contiguous, Placement::Striped, Placement::ZigZag] {
        let part = |index| SequenceChunk { placement, ..chunk(index, 2, 1) };
        let batches = [0, 1].map(|index| windows.batch(&[1], part(index)).unwrap());
        let mut targets: Vec<_> = batches.into_iter().flat_map(|batch| batch.targets).collect();
        targets.sort_unstable();
        assert_eq!(targets, [4, 5, 6, PADDING], "{placement:?}");
    }
}

#[test]
fn mapped_file_and_memory_give_equal_windows() {
    let folder = Folder::new("mapped");
    let path = folder.0.join("t.u16");
    let tokens: Vec<u16> = (0..5000u32).map(|index| (index * index % 257) as u16).collect();
    TokenFile::write(&path, tokens.iter().map(|&token| u32::from(token))).unwrap();
    let file = TokenWindows::new(TokenFile::open(&path, 257).unwrap(), 16).unwrap();
    let memory = TokenWindows::new(tokens, 16).unwrap();
    let uncut = Sampler::new(file.count(), 8, Some(1), LastBatch::Drop).unwrap();
    let big = memory.batch(&uncut.clone().next_or_new_epoch(), SequenceChunk::WHOLE).unwrap();
    let inputs = shares(&uncut, 4)
        .into_iter()
        .flat_map(|mut rank| file.batch(&rank.next_or_new_epoch(), SequenceChunk::WHOLE).unwrap().inputs);
    assert_eq!(inputs.collect::<Vec<_>>(), big.inputs);
}

#[test]
fn folder_is_read_in_path_order_and_split() {
    let folder = Folder::new("text");
    folder.file("b.md", "0123456789");
    for name in ["y.rs", "a/z.rs", "x.rs", "a/a.rs", "c.rs"] {
        folder.file(name, &name[..name.len() - 3]);
    }
    folder.file("a/skipped.png", "x");
    folder.file(".hidden/c.md", "x");
    folder.file("target/CACHEDIR.TAG", "");
    folder.file("target/doc/made.md", "x");
    let extensions = ["rs", "md"].map(str::to_owned);
    let text = text::read(&folder.0, &extensions, 0.2).unwrap();
    let tokens = |text: &str| {
        text.bytes().map(|byte| if byte == b'|' { text::END_OF_TEXT } else { u16::from(byte) }).collect()
    };
    let training: Vec<u16> = tokens("a/a|a/z|01234567|c|x|y|");
    let validation: Vec<u16> = tokens("89|");
    assert_eq!(text, text::Text { training, validation, documents: 6, skipped_links: 0 });
    assert_eq!(text::read(&folder.0.join("b.md"), &[], 0.0).unwrap().training.len(), 11);
    let error = text::read(&folder.0, &["py".to_owned()], 0.2).unwrap_err().to_string();
    assert!(error.ends_with("no file in it ends in one of [\"py\"]"), "{error}");
}

#[test]
fn linked_texts_and_capital_extensions_are_read() {
    let folder = Folder::new("links");
    let target_folder = Folder::new("links-outside");
    let link = |name: &str, target: &std::path::Path| {
        std::os::unix::fs::symlink(target, folder.0.join(name)).unwrap()
    };
    folder.file("a.TXT", "1");
    link("b.txt", &target_folder.file("blob", "2"));
    target_folder.file("more/c.txt", "3");
    link("more", &target_folder.0.join("more"));
    link("gone.txt", std::path::Path::new("/nowhere/text"));
    link("gone.png", std::path::Path::new("/nowhere/picture"));
    let text = text::read(&folder.0, &["txt".to_owned()], 0.0).unwrap();
    let end = text::END_OF_TEXT;
    assert_eq!((&text.training[..], text.documents), (&[u16::from(b'1'), end, u16::from(b'2'), end][..], 2));
    assert_eq!(text.skipped_links, 2, "one to a folder, and one to nothing");
    let error = text::documents(&folder.0, &["py".to_owned()]).unwrap_err().to_string();
    assert!(error.ends_with("links that were not followed, to folders or to nothing: 1"), "{error}");
    folder.file("pointer.txt", "version https://git-lfs.github.com/spec/v1\n");
    let error = text::read(&folder.0, &["txt".to_owned()], 0.0).unwrap_err().to_string();
    assert!(error.contains("pointer.txt") && error.contains("git lfs pull"), "{error}");
}

#[test]
fn last_epoch_of_a_checkpoint_is_not_left() {
    let mut sampler = Sampler::new(10, 4, Some(7), LastBatch::Drop).unwrap();
    sampler.resume(Position { epoch: u64::MAX, sample: 8 }).unwrap();
    assert_eq!(sampler.next_or_new_epoch().len(), 4);
    assert_eq!(sampler.position(), Position { epoch: u64::MAX, sample: 4 });
}
