package train

import (
	"errors"
	"fmt"
	"slices"
)

// takePlace returns the first step of this worker, which is not 0 for one that takes the place of
// another, and adds to pushed what that one has pushed.
func (w *worker) takePlace(c *counter, pushed []float32) (from int, err error) {
	rank := w.van.Rank()
	switch recovered := w.van.Recovered(); {
	case recovered && !w.Async:
		return 0, errors.New("a worker cannot take the place of another without --async: it does not know at which barrier the others wait")
	case !recovered && c.From > 0:
		return 0, fmt.Errorf("--count-from %d: this worker has not taken the place of another", c.From)
	}
	for step := range c.From {
		if slices.Equal(c.Cut, []int{rank, step}) {
			continue
		}
		for _, id := range c.drawIDs(rank, step) {
			pushed[id] += c.value(id, step)
		}
	}
	return c.From, nil
}

// cutPush returns what the push of a worker that was killed in it would have added, by id.
func (c *counter) cutPush() map[int32]int64 {
	missing := map[int32]int64{}
	if len(c.Cut) == 2 {
		for _, id := range c.drawIDs(c.Cut[0], c.Cut[1]) {
			missing[id] = int64(c.value(id, c.Cut[1]))
		}
	}
	return missing
}
