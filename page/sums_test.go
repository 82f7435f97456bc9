package page

import (
	"slices"
	"testing"
)

// Neighbours that are worth summing are one range; where there are too many, those count
// that save most.
func TestSums(t *testing.T) {
	of := func(first, last uint64, servers, sums float64) AlphaRange {
		return AlphaRange{Block: NewBlock(first, last, last-first+1, false), Forms: map[string]float64{FormServers.String(): servers, FormHostSums.String(): sums}}
	}
	dense, denser, rare, some := of(0, 9, 400, 100), of(10, 19, 4000, 1000), of(20, 29, 100, 98), of(50, 59, 100, 50)
	for name, c := range map[string]struct {
		ranges []AlphaRange
		most   int
		want   []SumRange
		all    bool
	}{
		"none":                  {nil, 8, nil, false},
		"all":                   {[]AlphaRange{dense, denser, some}, 8, []SumRange{{0, 59}}, true},
		"without the rare":      {[]AlphaRange{dense, denser, rare, some}, 8, []SumRange{{0, 19}, {50, 59}}, false},
		"those that save most":  {[]AlphaRange{some, rare, dense}, 1, []SumRange{{0, 9}}, false},
		"nothing worth it":      {[]AlphaRange{rare}, 8, nil, false},
		"an agent, of one host": {[]AlphaRange{{}}, 8, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, all := (&Alpha{Ranges: c.ranges}).Sums(c.most)
			if !slices.Equal(got, c.want) || all != c.all {
				t.Errorf("%v, %v; want %v, %v", got, all, c.want, c.all)
			}
		})
	}
}
