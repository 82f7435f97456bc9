package observe

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/agent/counts"
)

// Ranges that are learned bit by bit, overlap and adjoin say of each key the same as all of them, and so
// do lists of single keys and runs that go through them, in their order.
func TestPartKeysBecomeWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.SampledFrom([]uint64{0, 1 << 40, 1<<64 - 400}).Draw(t, "base")
		shifts := rapid.SliceOfN(rapid.Uint64(), 4, 4).Draw(t, "shifts")
		var told []PartRange
		want := map[uint64]uint64{}
		for range rapid.IntRange(0, 10).Draw(t, "ranges") {
			part := rapid.IntRange(0, 3).Draw(t, "part")
			low := base + uint64(100*part) // each part has places of its own, as those of a job have
			first := low + rapid.Uint64Range(0, 99).Draw(t, "first")
			r := PartRange{First: first, Last: rapid.Uint64Range(first, low+99).Draw(t, "last"), Whole: first + shifts[part]}
			told = append(told, r)
			for k := r.First; ; k++ {
				want[k] = k + shifts[part]
				if k == r.Last {
					break
				}
			}
		}
		o := New(Options{Locality: counts.DefaultLocalityOptions})
		shown := 0
		o.opts.PartKeys = func(_ netip.AddrPort, known int) []PartRange { return slices.Clone(told[known:shown]) }
		j := &Job{Sums: counts.NewLocality(counts.DefaultLocalityOptions), observer: o}
		for shown < len(told) {
			shown += rapid.IntRange(1, len(told)-shown).Draw(t, "more")
			o.learnParts(j)
		}
		for i, r := range j.parts.ranges {
			if i > 0 && r.First <= j.parts.ranges[i-1].Last || r.Last < r.First {
				t.Fatalf("ranges %v", j.parts.ranges)
			}
		}
		var l list
		var keys []uint64
		for range rapid.IntRange(0, 6).Draw(t, "pieces") {
			first := base + rapid.Uint64Range(0, 399).Draw(t, "key")
			run := counts.Run{First: first, Step: uint64(rapid.IntRange(1, 3).Draw(t, "step")), N: rapid.IntRange(1, 30).Draw(t, "n")}
			if run.N == 1 || run.Last() < run.First { // around the end of all keys
				l.addKey(run.First)
				keys = append(keys, run.First)
				continue
			}
			keys = run.Append(keys)
			l.addRun(run, rapid.Bool().Draw(t, "literal"))
		}
		for i, k := range keys {
			if whole, ok := want[k]; ok {
				keys[i] = whole
			}
		}
		j.parts.makeWhole(&l)
		var got []uint64
		literal := l.keys
		for i, p := range l.pieces {
			if p.run.N > 0 {
				got = p.run.Append(got)
				continue
			}
			mine := literal[:p.n]
			literal = literal[p.n:]
			got = append(got, mine...)
			rises := slices.IsSortedFunc(mine, func(a, b uint64) int {
				if a < b {
					return -1
				}
				return 1
			})
			if p.rising && !rises || i > 0 && l.pieces[i-1].run.N == 0 {
				t.Fatalf("pieces %+v of %v", l.pieces, l.keys)
			}
		}
		if !slices.Equal(got, keys) || l.len() != len(keys) {
			t.Fatalf("%v, want %v", got, keys)
		}
	})
}

// What answers have under part keys counts for the keys that they are parts of, and what was counted under them
// before they were known is forgotten. The memory that is held is right, though the list changes.
func TestAnswersCountForWholeKeys(t *testing.T) {
	var told []PartRange
	o := New(Options{Locality: counts.DefaultLocalityOptions, PartKeys: func(_ netip.AddrPort, known int) []PartRange { return told[known:] }})
	j := &Job{Sums: counts.NewLocality(counts.DefaultLocalityOptions), observer: o}
	count := func(answer bool, bytes uint64) {
		s := &stream{receiver: &Node{job: j}}
		s.message.job, s.message.answer, s.message.weight = j, answer, 1
		s.list.addRun(counts.Run{First: 1000, Step: 1, N: 40}, false)
		s.list.addKey(2000)
		o.held += s.list.memory()
		o.use(s, bytes, nil, 0)
		if o.freeMessage(s); o.held != 0 {
			t.Errorf("%d bytes stay held", o.held)
		}
	}
	count(true, 100)
	if n := j.Sums.Table.Size().Keys; n != 41 {
		t.Errorf("%d keys, want 41", n)
	}
	at := int64(time.Hour)
	o.lookForParts(j, at)
	told = []PartRange{{First: 1000, Last: 1019, Whole: 7}, {First: 2000, Last: 2000, Whole: 7}}
	if o.lookForParts(j, at+int64(partsAskedEvery)-1); j.Sums.Table.Size().Keys != 41 {
		t.Error("it is asked for part keys more often than it should be")
	}
	if o.lookForParts(j, at+int64(partsAskedEvery)); j.Sums.Table.Size().Keys != 20 {
		t.Errorf("%d keys without the parts, want 20", j.Sums.Table.Size().Keys)
	}
	count(true, 10)
	for key, want := range map[uint64]uint64{7: 20, 8: 10, 26: 10, 1020: 110, 1000: 0, 2000: 0} {
		if got := j.Sums.Table.Key(0, key).Sums[counts.PulledBytes]; got != want {
			t.Errorf("key %d has %d bytes, want %d", key, got, want)
		}
	}
	if n := j.Sums.Table.Size().Keys; n != 40 {
		t.Errorf("%d keys, want 40", n)
	}
	count(false, 1) // a request is of the keys that it says
	if got := j.Sums.Table.Key(0, 1000).Sums[counts.PushedBytes]; got != 1 {
		t.Errorf("key 1000 is pushed with %d bytes, want 1", got)
	}
}
