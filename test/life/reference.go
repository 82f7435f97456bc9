package life

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
)

// references are the losses of direct runs, on loopback without psidecar, by what was run.
type references struct {
	programs programs
	mu       sync.Mutex // held while one runs: two at a time would take each other's cores
	losses   map[string]float64
}

// of returns the loss that a job has without psidecar, by running it unless the same was run
// before. It blocks meanwhile.
func (b *references) of(ctx context.Context, s spec, d data) (float64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := fmt.Sprint(s.servers, s.workers, strings.Join(s.args, " "))
	if loss, ok := b.losses[name]; ok {
		return loss, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	node, worker := s.programs(b.programs, d)
	r, err := hosts.Job{Scheduler: node, Servers: hosts.Repeat(s.servers, node), Workers: hosts.Repeat(s.workers, worker)}.Run(ctx)
	if err != nil {
		return 0, err
	}
	loss, err := lossOf(r)
	if err == nil {
		if b.losses == nil {
			b.losses = map[string]float64{}
		}
		b.losses[name] = loss
	}
	return loss, err
}

// lossOf returns the loss over all samples that the first worker of a job that has ended
// reports.
func lossOf(r *hosts.Running) (float64, error) {
	for _, n := range r.Workers {
		w, err := parseLoss(n.Stdout.Bytes())
		if err != nil {
			return 0, err
		}
		if w.Rank == 0 && w.Loss != nil {
			return *w.Loss, nil
		}
	}
	return 0, errors.New("no worker says what the loss is")
}
