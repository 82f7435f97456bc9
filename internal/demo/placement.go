package demo

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// placement divides data and keys among the hosts before the run, so that the busiest host
// moves the fewest bytes. Each worker trains on its host's shard, and the proxies route keys to
// where the plan has put them.
func (s *stage) placement(ctx context.Context) (Result, error) {
	s.telling.tell("partitioning data and keys")
	parts := filepath.Join(s.dir, "parts")
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, s.options.Psidecar, "partition", "--input", s.options.Data, "-k", strconv.Itoa(s.options.Hosts),
		"--algorithm", "best", "--time-budget", "3s", "--key-map", s.options.keyMap, "--out", parts)
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return Result{}, fmt.Errorf("phase placement: psidecar partition: %w\n%s", err, stderr.Bytes())
	}
	s.placed = []string{"--placement", filepath.Join(parts, "placement.json")}
	// Later phases train on the shards as well. A worker takes the shard of its rank when it is
	// given a folder.
	s.data = parts
	s.telling.tell("the job, with its keys where they are used")
	// Another planner, which has seen none of the runs before: its heatmap is of this one.
	if err := s.fleet.planner.stop(); err != nil {
		return Result{}, err
	}
	if err := s.startPlanner(ctx); err != nil {
		return Result{}, err
	}
	if err := s.startProxies(ctx, s.placed...); err != nil {
		return Result{}, err
	}
	result, err := s.measureJob(ctx, "placement")
	if err != nil {
		return Result{}, err
	}
	if err := s.showHeatmap(ctx, "after placement"); err != nil {
		return Result{}, err
	}
	return result, s.unguarded(ctx)
}

// unguarded waits until the proxies let connections go direct again when there is no proxy,
// which they do after a job with displaced keys has ended. Otherwise the next phase's job could
// not connect while the proxies are replaced.
func (s *stage) unguarded(ctx context.Context) error {
	for _, p := range s.fleet.proxies {
		err := p.await(ctx, func(ctx context.Context) error {
			var state struct {
				Jobs []struct{ Guarded bool }
			}
			if err := p.get(ctx, "/api/v1/connections", &state); err != nil {
				return err
			}
			for _, j := range state.Jobs {
				if j.Guarded {
					return fmt.Errorf("a job that has ended counts as running")
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// decideEvery is the interval at which the demo's planner considers moving keys. It is short,
// since the job is.
const decideEvery = time.Second
