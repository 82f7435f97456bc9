package values

import (
	"fmt"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A job whose pushes a threshold does not fit is said not to be thresholded, and why,
// until some push is; and again once none has been for long.
func TestUnfit(t *testing.T) {
	const job = "198.18.0.1:8000"
	e := newEnds(t, Rule{Threshold: 0.9})
	w := e.dial(t, e.worker, e.server, "ps9")
	defer w.close()
	if why, unfit := e.worker.Unfit(job); unfit {
		t.Fatalf("unfit before anything was pushed: %s", why)
	}
	before := len(e.worker.fits.jobs)
	if _, unfit := e.worker.Unfit("198.18.0.9:1"); unfit || len(e.worker.fits.jobs) != before {
		t.Error("to ask about a job makes it known")
	}
	keys, vals := []uint64{7}, make([]float32, 600)
	for i := range vals {
		vals[i] = float32(i)
	}
	push := func(step int, kind pslite.DataType) {
		q := request{timestamp: int32(step), push: true, keys: keys, vals: vals}
		if kind != pslite.Float {
			q.kind, q.raw = kind, pslite.AppendFloat32(nil, vals)
		}
		w.carry(t, q.frames())
	}
	push(0, pslite.Float)
	if why, unfit := e.worker.Unfit(job); !unfit || why != ReasonUnpulled {
		t.Errorf("after initial values: %q, %v; want unpulled", why, unfit)
	}
	back := e.dial(t, e.server, e.worker, "ps8")
	defer back.close()
	w.carry(t, request{timestamp: 1, pull: true, keys: keys}.frames())
	back.carry(t, request{timestamp: 1, pull: true, answer: true, keys: keys, vals: vals}.frames())
	push(2, pslite.Float)
	if why, unfit := e.worker.Unfit(job); unfit {
		t.Errorf("after a gradient was thresholded: %s", why)
	}
	for step := 3; ; step++ {
		push(step, pslite.Other)
		if why, unfit := e.worker.Unfit(job); unfit {
			if why != ReasonType {
				t.Errorf("values of no known type: %s", why)
			}
			break
		}
		if step > 3*latelyFit {
			t.Fatal("what was thresholded long ago counts for ever")
		}
	}
}

// Of more jobs than there is room for the latest are known.
func TestFitsAreBounded(t *testing.T) {
	var f fits
	for i := range 3 * maxFits {
		f.of(fmt.Sprint(i)).note(ReasonType)
	}
	if n := len(f.jobs); n > maxFits {
		t.Errorf("%d jobs, want at most %d", n, maxFits)
	}
	last := f.of(fmt.Sprint(3*maxFits - 1))
	if last.whole.Load() != 1 {
		t.Error("the last job is forgotten")
	}
}
