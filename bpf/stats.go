package bpf

import (
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
)

// ProgramStats is what one program has cost so far.
type ProgramStats struct {
	Program string // "egress" or "ingress"
	// Runs is the number of packets that it ran for, RunTime the time that took. Both count
	// only while this capture or another process has turned on the measurement
	// ([Options.MeasureCost]).
	Runs    uint64
	RunTime time.Duration
}

// ProgramStats returns the run count and run time of both programs since they were loaded.
func (c *Capture) ProgramStats() ([]ProgramStats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("reading the programs' run time: %w", os.ErrClosed)
	}
	var list []ProgramStats
	for _, p := range []struct {
		name    string
		program *ebpf.Program
	}{{"egress", c.objects.egress}, {"ingress", c.objects.ingress}} {
		stats, err := p.program.Stats()
		if err != nil {
			return nil, fmt.Errorf("reading the run time of the %s program: %w", p.name, err)
		}
		list = append(list, ProgramStats{p.name, stats.RunCount, stats.Runtime})
	}
	return list, nil
}
