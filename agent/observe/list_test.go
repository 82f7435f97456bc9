package observe

import (
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
)

// spell returns the list's keys, and checks what the pieces say of them.
func spell(t *rapid.T, l *list) []uint64 {
	var all []uint64
	keys := l.keys
	for _, p := range l.pieces {
		if p.run.N > 0 {
			if !p.run.Ascends() {
				t.Fatalf("%+v does not ascend", p.run)
			}
			all = p.run.Append(all)
			continue
		}
		if p.n == 0 {
			t.Fatalf("an empty piece")
		}
		if p.rising && !slices.IsSortedFunc(keys[:p.n], func(a, b uint64) int {
			if a < b {
				return -1
			}
			return 1
		}) {
			t.Fatalf("%v said to rise", keys[:p.n])
		}
		all, keys = append(all, keys[:p.n]...), keys[p.n:]
	}
	if len(keys) > 0 || l.len() != len(all) {
		t.Fatalf("%d keys beyond the pieces, %d counted of %d", len(keys), l.len(), len(all))
	}
	return all
}

// Whatever pieces a key frame comes in, its list has the frame's keys.
func TestListHasTheFramesKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l list
		var want []uint64
		split := []byte{} // a key of which not all bytes have come
		next := rapid.Uint64().Draw(t, "first")
		oneByOne := rapid.IntRange(0, 5).Draw(t, "uses") == 0
		for range rapid.IntRange(1, 12).Draw(t, "pieces") {
			if rapid.IntRange(0, 3).Draw(t, "jump") == 0 {
				next = rapid.SampledFrom([]uint64{0, 5, 1 << 63, 1<<64 - 40, next}).Draw(t, "next")
			}
			step := rapid.SampledFrom([]uint64{1, 1, 1, 9, 0, 1 << 62}).Draw(t, "step")
			n := rapid.IntRange(1, 30).Draw(t, "n")
			run := counts.Run{First: next, Step: step, N: n}
			keys := run.Append(nil)
			next += uint64(n) * step
			want = append(want, keys...)
			if len(split) == 0 && rapid.Bool().Draw(t, "run") {
				l.addRun(run, oneByOne)
				continue
			}
			for _, k := range keys {
				split = binary.LittleEndian.AppendUint64(split, k)
			}
			n = len(split) - rapid.IntRange(0, 7).Draw(t, "kept")
			l.addBytes(split[:n])
			rest := rapid.IntRange(0, 1).Draw(t, "later")
			if rest == 0 { // the rest of a key comes alone, as the kernel does it
				l.addBytes(split[n:])
				n = len(split)
			}
			split = slices.Clone(split[n:])
		}
		l.addBytes(split)
		if got := spell(t, &l); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		if first, last := l.ends(); first != want[0] || last != want[len(want)-1] {
			t.Fatalf("from %d to %d, want %d to %d", first, last, want[0], want[len(want)-1])
		}
	})
}

// Streams hand buffers on to each other, and each message still has its own
// keys, wherever the pieces of several streams alternate.
func TestListsOfStreamsThatAlternate(t *testing.T) {
	type sending struct {
		stream
		frame []byte // what has not come yet
		keys  []uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		o := New(Options{Locality: counts.DefaultLocalityOptions})
		streams := make([]sending, rapid.IntRange(2, 4).Draw(t, "streams"))
		next := uint64(1)
		for range rapid.IntRange(10, 80).Draw(t, "pieces") {
			s := &streams[rapid.IntRange(0, len(streams)-1).Draw(t, "stream")]
			if len(s.frame) == 0 {
				s.keys = nil
				for range rapid.IntRange(1, 3).Draw(t, "keys") {
					s.keys = append(s.keys, next)
					s.frame = binary.LittleEndian.AppendUint64(s.frame, next)
					next = next*3 + 1
				}
			}
			n := min(rapid.IntRange(1, 10).Draw(t, "bytes"), len(s.frame))
			o.hold(&s.stream, &bpf.Record{Kind: bpf.KindKeys, Data: s.frame[:n]})
			if s.frame = s.frame[n:]; len(s.frame) > 0 {
				continue
			}
			if got := spell(t, &s.list); !slices.Equal(got, s.keys) {
				t.Fatalf("%v, want %v", got, s.keys)
			}
			o.freeMessage(&s.stream)
		}
	})
}

// Dense keys in the pieces that segments make of them are one run.
func TestListOfDenseKeysIsOneRun(t *testing.T) {
	var l list
	frame := []byte{}
	for _, k := range (counts.Run{First: 3, Step: 2, N: 1000}).Append(nil) {
		frame = binary.LittleEndian.AppendUint64(frame, k)
	}
	for at := 0; at < len(frame); {
		l.addBytes(frame[at:min(at+5, len(frame))]) // the end of a key, or its beginning
		if at += 5; at%8 != 0 && at < len(frame) {
			rest := min(8-at%8, len(frame)-at)
			l.addBytes(frame[at : at+rest])
			at += rest
		}
		n := min(20, (len(frame)-at)/8)
		l.addRun(counts.Run{First: uint64(3 + at/4), Step: 2, N: n}, false)
		at += 8 * n
	}
	if len(l.pieces) != 1 || l.pieces[0].run != (counts.Run{First: 3, Step: 2, N: 1000}) {
		t.Errorf("%d pieces, the first %+v", len(l.pieces), l.pieces[0])
	}
}
