package partition

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"

	"github.com/psidecar/psidecar/planner/dataset"
)

// WriteAssignment writes a as text, one machine number per line: first the samples in the order of
// the data, then the parameters that occur, in ascending order of their feature ids.
func WriteAssignment(w io.Writer, a *Assignment) error {
	buffered := bufio.NewWriterSize(w, 256<<10)
	var line []byte
	for _, list := range [][]int32{a.Samples, a.Params} {
		for _, machine := range list {
			line = append(strconv.AppendInt(line[:0], int64(machine), 10), '\n')
			if _, err := buffered.Write(line); err != nil {
				return fmt.Errorf("writing the assignment: %w", err)
			}
		}
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("writing the assignment: %w", err)
	}
	return nil
}

// ReadAssignment reads the format of [WriteAssignment], for n samples and m parameters on k
// machines. name is used in errors. Any program may have written the text: blank lines at the end
// are accepted, nothing else is. A malformed line is a [dataset.LineError].
func ReadAssignment(r io.Reader, name string, n, m, k int) (*Assignment, error) {
	a := &Assignment{Samples: make([]int32, n), Params: make([]int32, m)}
	lines := bufio.NewScanner(r)
	line := 0
	for lines.Scan() {
		text := bytes.TrimSpace(lines.Bytes())
		line++
		if line > n+m {
			if len(text) == 0 {
				continue
			}
			return nil, &dataset.LineError{File: name, Line: line, Err: fmt.Errorf("more than the %d lines of %d samples and %d parameters", n+m, n, m)}
		}
		machine, err := strconv.ParseUint(string(text), 10, 31)
		if err != nil || machine >= uint64(k) {
			return nil, &dataset.LineError{File: name, Line: line, Err: fmt.Errorf("%q: want a machine number from 0 to %d", text, k-1)}
		}
		if line <= n {
			a.Samples[line-1] = int32(machine)
		} else {
			a.Params[line-1-n] = int32(machine)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the assignment %s, after line %d: %w", name, line, err)
	}
	if line < n+m {
		return nil, fmt.Errorf("%s ends after line %d: want %d lines, %d samples and then %d parameters", name, line, n+m, n, m)
	}
	return a, nil
}
