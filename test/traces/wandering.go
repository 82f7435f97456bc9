package traces

import (
	"fmt"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/planner/dataset"
)

// Wandering is a job whose workers have favourite keys that change every so often:
// what psjob --model count does, with the same keys in the same steps.
type Wandering struct {
	Workers, Servers int
	Steps            int
	Width            int // floats of a value
	Seed             uint64
	Count            train.CountOptions
}

// Trace returns the job's uses.
func (w Wandering) Trace() (Trace, error) {
	if w.Workers < 1 || w.Servers < 1 || w.Steps < 1 || w.Width < 1 {
		return nil, fmt.Errorf("%d workers, %d servers, %d steps, %d values a key: want 1 or more", w.Workers, w.Servers, w.Steps, w.Width)
	}
	spread, err := dataset.ParseKeyMap("spread")
	if err != nil {
		return nil, err
	}
	// The same function that a counting worker uses, so that traces and jobs can be
	// compared.
	keys, err := train.CountKeys(w.Count, w.Seed, &spread)
	if err != nil {
		return nil, err
	}
	return func(each func(*recording.Use) error) error {
		e := newEmitter(w.Workers, w.Servers, 4*w.Width, each)
		for step := range w.Steps {
			// Workers go on together: all push, then all pull.
			for _, push := range []bool{true, false} {
				for worker := range w.Workers {
					if err := e.request(worker, push, keys(worker, step)); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}, nil
}
