package values

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Keys have the places that a map gives them, whatever lists come: whole, in part, in other
// orders, with keys that come twice and of other widths than before.
func TestIndexIsAMap(t *testing.T) {
	type known struct{ place, width int }
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		x, places, values := newIndex(), map[uint64]known{}, 0
		widths := 1 + r.IntN(3)
		var last []uint64
		for range 30 {
			keys := slices.Clone(last)
			switch r.IntN(4) {
			case 0:
				for range r.IntN(200) {
					keys = append(keys, uint64(r.IntN(1000)))
				}
			case 1:
				keys = slices.DeleteFunc(keys, func(uint64) bool { return r.IntN(3) == 0 })
			case 2:
				r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			}
			if r.IntN(3) > 0 {
				slices.Sort(keys)
				keys = slices.Compact(keys)
			}
			if len(keys) == 0 {
				continue
			}
			last = keys
			frame := pslite.Keys(pslite.AppendKeys(nil, keys))
			first := r.IntN(len(keys))
			p := piece{first: first, keys: 1 + r.IntN(len(keys)-first), width: 1 + r.IntN(widths)}
			wantMissing, wantValues, wantSame := 0, 0, true
			var want []uint32
			for _, k := range keys[p.first : p.first+p.keys] {
				at, ok := places[k]
				if !ok {
					wantMissing++
					wantValues += p.width
				} else if at.width != p.width {
					wantSame = false
				}
				want = append(want, uint32(at.place))
			}
			got, missing, n, same := x.locate(nil, frame, &p)
			if !slices.Equal(got, want) || missing != wantMissing || n != wantValues || same != wantSame {
				t.Fatalf("seed %d: places %v, %d keys missing with %d values, same %v; want %v, %d, %d, %v", seed, got, missing, n, same, want, wantMissing, wantValues, wantSame)
			}
			for _, k := range keys[p.first : p.first+p.keys] {
				if got, want := x.at(k).place, uint32(places[k].place); got != want {
					t.Fatalf("seed %d: key %d has place %d, want %d", seed, k, got, want)
				}
				if _, ok := places[k]; !ok && r.IntN(8) > 0 {
					x.add(k, p.width)
					places[k] = known{values + 1, p.width}
					values += p.width
				}
			}
			if x.values != values || x.used != len(places) {
				t.Fatalf("seed %d: %d keys with %d values, want %d and %d", seed, x.used, x.values, len(places), values)
			}
		}
	}
}
