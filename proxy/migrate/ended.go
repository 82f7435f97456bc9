package migrate

import (
	"cmp"
	"slices"

	"github.com/psidecar/psidecar/proxy/route"
)

// ended has the batches of another mover that were released here. A host of several addresses gets letters over a link for
// each, so a Hold and Release of a batch may come once more when later batches with the same keys are over: taken again,
// they would bring the keys to an owner that they have left.
type ended struct {
	upTo route.Batch   // it, and all before
	some []route.Batch // others, ascending, at most maxEnded
}

// maxEnded is far above the number of batches that a mover has at a time.
const maxEnded = 256

// has reports whether a batch is over. One whose Hold was lost until maxEnded later ones had ended counts as over, too; its
// mover gives it up and tries again.
func (e *ended) has(b route.Batch) bool {
	if b.Number <= e.upTo.Number {
		return true
	}
	_, found := e.placeOf(b)
	return found
}

func (e *ended) placeOf(b route.Batch) (place int, found bool) {
	return slices.BinarySearchFunc(e.some, b, func(x, y route.Batch) int { return cmp.Compare(x.Number, y.Number) })
}

// noteEnded notes that a batch is over.
func (e *ended) noteEnded(b route.Batch) {
	if e.has(b) {
		return
	}
	place, _ := e.placeOf(b)
	e.some = slices.Insert(e.some, place, b)
	if len(e.some) > maxEnded {
		e.upTo, e.some = e.some[0], slices.Delete(e.some, 0, 1)
	}
}

// noteAll notes that all batches up to one are over.
func (e *ended) noteAll(b route.Batch) {
	if b.Number > e.upTo.Number {
		e.upTo = b
		e.some = slices.DeleteFunc(e.some, func(x route.Batch) bool { return x.Number <= b.Number })
	}
}

// endedOf returns those of a mover.
func (s *Site) endedOf(mover string) *ended {
	if s.ended[mover] == nil {
		s.ended[mover] = &ended{}
	}
	return s.ended[mover]
}
