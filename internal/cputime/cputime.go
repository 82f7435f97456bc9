// Package cputime reads what the processors of a host have done.
package cputime

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Read returns the time of all processors since the host started, and how much of it they were
// idle, in ticks of the kernel. proc is a folder with a /proc file system.
func Read(proc string) (total, idle uint64, err error) {
	name := filepath.Join(proc, "stat")
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, 0, err
	}
	if total, idle, err = parse(text); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", name, err)
	}
	return total, idle, nil
}

// parse returns the time of all processors, and how much of it they were idle, of the text of
// /proc/stat.
func parse(text []byte) (total, idle uint64, err error) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	// user nice system idle iowait irq softirq steal; what follows is contained in user and nice.
	var t [8]uint64
	if _, err := fmt.Sscanf(string(line), "cpu %d %d %d %d %d %d %d %d", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]); err != nil {
		return 0, 0, errors.New("its first line has no times of processors")
	}
	for _, n := range t {
		total += n
	}
	return total, t[3] + t[4], nil
}
