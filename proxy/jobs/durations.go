package jobs

import (
	"slices"

	"github.com/psidecar/psidecar/proxy/migrate"
)

// durations has how long the last moves took, in microseconds: whole, and by phase, in the same
// order. At most lastMoves of each.
type durations struct {
	whole []uint64
	parts [migrate.Phases][]uint64
}

// lastMoves bounds the moves that are remembered.
const lastMoves = 1000

// addMove adds a move, in the place of the oldest where there are lastMoves.
func (d *durations) addMove(whole uint64, parts *[migrate.Phases]uint64) {
	keep := func(list []uint64, v uint64) []uint64 {
		if len(list) == lastMoves {
			list = slices.Delete(list, 0, 1)
		}
		return append(list, v)
	}
	d.whole = keep(d.whole, whole)
	for i, v := range parts {
		d.parts[i] = keep(d.parts[i], v)
	}
}

// medians returns the median of each phase by its name, in microseconds; nil where nothing has
// moved.
func (d *durations) medians() map[string]uint64 {
	if len(d.whole) == 0 {
		return nil
	}
	all := map[string]uint64{}
	for i, list := range d.parts {
		all[migrate.Phase(i).String()] = median(list)
	}
	return all
}

func median(list []uint64) uint64 { return slices.Sorted(slices.Values(list))[len(list)/2] }
