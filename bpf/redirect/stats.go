package redirect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// ProgramStats is what one program of a group has cost so far.
type ProgramStats struct {
	Program string // as in redirect.c
	// Runs and RunTime count only while the kernel measures (kernel.bpf_stats_enabled).
	Runs    uint64
	RunTime time.Duration
}

// ProgramStats returns the run count and run time of a group's programs since they were loaded,
// in the order of attaching. The error wraps fs.ErrNotExist for a group that is not attached.
func (r *Redirect) ProgramStats(id GroupID) ([]ProgramStats, error) {
	dir := filepath.Join(r.dir, groupPrefix+strconv.FormatUint(uint64(id), 10))
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("cgroup number %d is not redirected: %w", id, fs.ErrNotExist)
	}
	var all []ProgramStats
	for _, h := range groupHooks {
		s, err := programStats(filepath.Join(dir, h.program))
		if err != nil {
			return nil, fmt.Errorf("reading the run time of %s: %w", h.program, err)
		}
		s.Program = h.program
		all = append(all, s)
	}
	return all, nil
}

// programStats returns the statistics of the program behind a pinned link.
func programStats(pin string) (s ProgramStats, err error) {
	l, err := link.LoadPinnedLink(pin, &ebpf.LoadPinOptions{})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	info, err := l.Info()
	if err != nil {
		return s, err
	}
	p, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	stats, err := p.Stats()
	if err != nil {
		return s, err
	}
	return ProgramStats{Runs: stats.RunCount, RunTime: stats.Runtime}, nil
}
