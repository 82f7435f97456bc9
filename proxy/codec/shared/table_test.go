package shared

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// lists are ascending lists of keys of a Zipf-like distribution, spread over all keys, with values
// of a width that change in one of a few cases.
func lists(seed uint64, n, keys, width int) (all, values [][]byte) {
	rng := rand.New(rand.NewPCG(seed, 3))
	versions := map[uint64]byte{}
	for range n {
		chosen := map[uint64]bool{}
		for len(chosen) < keys {
			rank := uint64(rng.ExpFloat64() * float64(keys))
			chosen[rank*0x9E3779B97F4A7C15] = true
		}
		var list, vals []byte
		for _, key := range slices.Sorted(maps.Keys(chosen)) {
			if rng.IntN(4) == 0 {
				versions[key]++
			}
			list = binary.LittleEndian.AppendUint64(list, key)
			v := make([]byte, width)
			v[0] = byte(key >> 40)
			v[width-1] += versions[key]
			vals = append(vals, v...)
		}
		all, values = append(all, list), append(values, vals)
	}
	return all, values
}

// What one table takes out the other puts in, however small they are.
func TestTablesAgree(t *testing.T) {
	for _, width := range []int{1, 2, 4, 7, 64} {
		for setBits := 1; setBits < 9; setBits++ {
			here, there := newTable(width, setBits), newTable(width, setBits)
			all, values := lists(uint64(setBits), 30, 200, width)
			saved := 0
			for i, keys := range all {
				known, fresh, count, _ := here.appendFresh(nil, nil, keys, values[i])
				if len(fresh) != (200-count)*width || len(known) != 25 {
					t.Fatalf("%d bits, %d known, %d bytes", 8*len(known), count, len(fresh))
				}
				got := make([]byte, len(values[i]))
				require.NoError(t, there.fill(got, known, fresh, keys))
				if !bytes.Equal(got, values[i]) {
					t.Fatalf("width %d, %d sets: other values in list %d", width, 1<<setBits, i)
				}
				saved += count
			}
			if setBits == 8 && saved < 30*200/4 {
				t.Errorf("width %d: only %d of %d values were known", width, saved, 30*200)
			}
		}
	}
}

// A table as large as what was sent knows what a map would.
func TestTableAgainstMap(t *testing.T) {
	const width = 4
	all, values := lists(5, 20, 100, width)
	table, last := newTable(width, setBitsFor(20*100)), map[uint64][width]byte{0: {}} // as a new table has
	knows, could := 0, 0
	for i, keys := range all {
		known, _, count, _ := table.appendFresh(nil, nil, keys, values[i])
		knows += count
		for k := range 100 {
			key, v := binary.LittleEndian.Uint64(keys[8*k:]), [width]byte(values[i][width*k:])
			have, ok := last[key]
			if is := ok && have == v; is {
				could++
			} else if known[k/8]>>(k%8)&1 == 1 {
				t.Fatalf("list %d: key %d is said to be known", i, key)
			}
			last[key] = v
		}
	}
	if knows < could*95/100 {
		t.Errorf("%d values were known, %d could be", knows, could)
	}
}

// A key that is said to be known and is not is an error, not an old value.
func TestUnknownKey(t *testing.T) {
	keys := binary.LittleEndian.AppendUint64(nil, 7)
	if err := newTable(4, 3).fill(make([]byte, 4), []byte{1}, nil, keys); err == nil {
		t.Error("the value of a key that was never sent")
	}
}

func BenchmarkTable(b *testing.B) {
	for _, c := range []struct{ keys, width int }{{1000, 4}, {20_000, 4}, {1000, 64}} {
		all, values := lists(1, 16, c.keys, c.width)
		for _, op := range []string{"take out", "put in"} {
			b.Run(fmt.Sprintf("%d keys of %d bytes/%s", c.keys, c.width, op), func(b *testing.B) {
				setBits := setBitsFor(4 * c.keys)
				here, there := newTable(c.width, setBits), newTable(c.width, setBits)
				// Between two answers the job uses the caches.
				job := make([]byte, 32<<20)
				type coded struct{ known, fresh []byte }
				var done []coded
				for i, keys := range all {
					known, fresh, _, _ := here.appendFresh(nil, nil, keys, values[i])
					done = append(done, coded{known, fresh})
				}
				got := make([]byte, len(values[0]))
				var known, fresh []byte
				b.SetBytes(int64(c.keys * c.width))
				for i := 0; b.Loop(); i = (i + 1) % len(all) {
					b.StopTimer()
					for k := 0; k < len(job); k += 64 {
						job[k]++
					}
					b.StartTimer()
					if op == "take out" {
						known, fresh, _, _ = here.appendFresh(known[:0], fresh[:0], all[i], values[i])
						continue
					}
					if i == 0 {
						there.clear()
					}
					require.NoError(b, there.fill(got, done[i].known, done[i].fresh, all[i]))
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.keys), "ns/key")
			})
		}
	}
}
