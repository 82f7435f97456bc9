package counts

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// million is a request of a million keys in the pieces in which it is handed on, of
// keys that are hashed, or of a run.
func million(base uint64, dense bool) (batches []Batch) {
	const n, piece = 1_000_000, 1 << 17
	if dense {
		return []Batch{{Run: Run{First: base, Step: 1, N: n}}}
	}
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = (base + uint64(i)) * 0xd1342543de82ef95
	}
	slices.Sort(keys)
	for part := range slices.Chunk(keys, piece) {
		batches = append(batches, Batch{Keys: part, Ascending: true})
	}
	return batches
}

func useLong(c *collector, step uint64, batches []Batch) {
	for _, b := range batches {
		b.Each = [Planes]uint64{Pushes: 1, PushedBytes: 4}
		c.addBatch(int64(step), step, &b)
	}
}

// Of requests of a million keys a window has some from all over the range, with all
// their uses in the steps that it has; neighbours are in it together. What it has and
// what it left out are all uses.
func TestLongLists(t *testing.T) {
	for name, dense := range map[string]bool{"hashed": false, "dense": true} {
		t.Run(name, func(t *testing.T) {
			const steps = 5
			batches := million(3, dense)
			c := &collector{limit: DefaultWindowKeys}
			for step := range uint64(steps) {
				useLong(c, step, batches)
				if len(c.keys) > c.limit {
					t.Fatalf("%d keys are held", len(c.keys))
				}
			}
			w := c.window()
			uses, most, least := uint64(0), uint32(0), ^uint32(0)
			for _, u := range w.Workers[0].Uses {
				uses += uint64(u.Pushes)
				most, least = max(most, u.Pushes), min(least, u.Pushes)
			}
			if uses+w.LeftOut != steps*1_000_000 {
				t.Errorf("%d uses in the window, %d left out, of %d", uses, w.LeftOut, steps*1_000_000)
			}
			if most > least+1 || most == 0 { // the last request may have found room for its first keys
				t.Errorf("keys were used %d to %d times as often", least, most)
			}
			if len(w.Keys) < DefaultWindowKeys/enough/2 {
				t.Errorf("%d keys of a million", len(w.Keys))
			}
			last := batches[len(batches)-1]
			first, end := uint64(0), uint64(0)
			if dense {
				first, end = last.Run.First, last.Run.Last()
			} else {
				first, end = batches[0].Keys[0], last.Keys[len(last.Keys)-1]
			}
			gap := w.Keys[0] - first
			for i := 1; i < len(w.Keys); i++ {
				gap = max(gap, w.Keys[i]-w.Keys[i-1])
			}
			if gap = max(gap, end-w.Keys[len(w.Keys)-1]); gap > (end-first)/50 {
				t.Errorf("a gap of %d in %d", gap, end-first)
			}
			if !dense {
				return
			}
			ranges := 1
			for i := 1; i < len(w.Keys); i++ {
				if w.Keys[i] != w.Keys[i-1]+1 {
					ranges++
				}
			}
			if ranges > len(w.Keys)>>sampleBits+2 {
				t.Errorf("%d keys are %d ranges", len(w.Keys), ranges)
			}
		})
	}
}

// Each block of keys has its turn, some are always looked at, and what a sample has all
// larger ones have.
func TestSamplesTakeTurns(t *testing.T) {
	const bits, blocks = 4, 1 << 12
	turns, always := [blocks]int{}, 0
	for turn := range uint64(1 << (bits + 1)) {
		s, some := sample{bits, turn + 77<<bits}, 0
		for block := range uint64(blocks) {
			key := block<<sampleBits + turn
			if !s.has(key) {
				continue
			}
			turns[block]++
			some++
			for larger := s; larger.bits > 0; {
				if larger = larger.larger(); !larger.has(key) {
					t.Fatalf("key %d is in sample %v, not in %v", key, s, larger)
				}
			}
		}
		if part := s.part(blocks); some > 2*part || some < part/4 {
			t.Errorf("turn %d has %d blocks, about %d were wanted", turn, some, part)
		}
	}
	for block, n := range turns {
		switch n {
		case 1:
		case 1 << (bits + 1):
			always++
		default:
			t.Errorf("block %d had %d turns of %d", block, n, 1<<(bits+1))
		}
	}
	if always < blocks>>(bits+2) {
		t.Errorf("%d blocks are always looked at", always)
	}
}

// Windows of a list that is used again and again, far longer than they hold, have each of
// its keys in the end.
func TestAllKeysOfALongListAreToldInTurn(t *testing.T) {
	const n, limit = 1 << 17, 1 << 13
	for name, b := range map[string]Batch{
		"dense":  {Run: Run{First: 1 << 40, Step: 1, N: n}, Each: Sums{Pushes: 1}},
		"hashed": {Keys: hashed(n), Ascending: true, Each: Sums{Pushes: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			j, seen, turns := windowed(limit), map[uint64]bool{}, 0
			for ; len(seen) < n && turns < 16*n/limit; turns++ {
				for step := range uint64(4) {
					j.window.addBatch(int64(turns)<<turnBits+int64(step), step, &b)
				}
				w := j.TakeWindow(limit)
				if len(w.Keys) < limit/enough/2 {
					t.Fatalf("%d keys in turn %d", len(w.Keys), turns)
				}
				for _, key := range w.Keys {
					seen[key] = true
				}
			}
			if len(seen) < n {
				t.Errorf("%d keys of %d were told in %d turns", len(seen), n, turns)
			}
		})
	}
}

func hashed(n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = uint64(i+1) * 0xd1342543de82ef95
	}
	slices.Sort(keys)
	return keys
}

// Whether workers turned to other keys is judged by the keys of the sample: the same
// million again is no shift, another one is.
func TestShiftOfLongLists(t *testing.T) {
	j := windowed(DefaultWindowKeys)
	round := func(base uint64) *Window {
		for step := range uint64(3) {
			for _, b := range million(base, false) {
				b.Each = [Planes]uint64{Pushes: 1, PushedBytes: 4}
				j.mu.Lock()
				j.window.addBatch(int64(step), step, &b)
				j.mu.Unlock()
			}
		}
		return j.TakeWindow(1 << 14)
	}
	round(3)
	for range 3 {
		if w := round(3); w.Shifted {
			t.Error("the same keys are taken for others")
		}
	}
	if w := round(1 << 40); !w.Shifted {
		t.Error("other keys are taken for the same")
	}
}

// What noting a request of a million keys takes, in processor time too.
func BenchmarkLongList(b *testing.B) {
	for name, dense := range map[string]bool{"hashed": false, "dense": true} {
		b.Run(name, func(b *testing.B) {
			batches := million(3, dense)
			j := windowed(DefaultWindowKeys)
			useLong(j.window, 0, batches)
			j.TakeWindow(1 << 14)
			b.ReportAllocs()
			before := readProcessorTime(b)
			for i := 0; b.Loop(); i++ {
				useLong(j.window, uint64(i), batches)
				if i%64 == 63 { // of ten requests a second
					j.TakeWindow(1 << 14)
				}
			}
			b.ReportMetric(1e3*(readProcessorTime(b)-before).Seconds()/float64(b.N), "cpu-ms/list")
		})
	}
}

func readProcessorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
