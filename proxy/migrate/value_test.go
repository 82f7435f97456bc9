package migrate

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// Keys whose values cannot go are named, all at once, before anything is pushed.
func TestValuesThatCannotGoAreNamed(t *testing.T) {
	numbers := func(v ...float32) []byte { return pslite.AppendFloat32(nil, v) }
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, c := range map[string]struct {
		typ    pslite.DataType
		values [][]byte
		want   []uint64
	}{
		"none":       {pslite.Float, [][]byte{numbers(1), nil, numbers(2), nil}, []uint64{6, 8}},
		"not finite": {pslite.Float, [][]byte{numbers(nan), numbers(1), numbers(3), numbers(inf)}, []uint64{5, 8}},
		"bytes":      {pslite.Char, [][]byte{numbers(1), numbers(1), numbers(3), numbers(4)}, []uint64{5, 6, 7, 8}},
		"fit":        {pslite.Float, [][]byte{numbers(1), numbers(1), numbers(3), numbers(4)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := &moving{move: Move{Keys: []uint64{5, 6, 7, 8}, To: 1, Handler: Adds}, phase: reading, op: &route.Op{Values: c.values, Type: c.typ}}
			op, err := m.nextOp()
			var unfit *ValueError
			if errors.As(err, &unfit); c.want == nil {
				if err != nil || op == nil || !op.Push {
					t.Errorf("%+v, %v", op, err)
				}
			} else if unfit == nil || !slices.Equal(unfit.Keys, c.want) {
				t.Errorf("%v, want keys %v", err, c.want)
			}
		})
	}
}
