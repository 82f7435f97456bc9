package recording

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// A Summary describes a recording, as psidecar record --info --json prints it.
type Summary struct {
	Header
	Totals
	Complete bool     `json:"complete"` // false: it was cut off, and the figures are of the part before
	Seconds  float64  `json:"seconds"`  // from the first use to the last
	Jobs     []string `json:"jobs"`
	Workers  []string `json:"workers"`
	Servers  []string `json:"servers"`
	Steps    int      `json:"steps"` // different timestamps of the worker with the most
	// LeastOneIn and MostOneIn are the densest and the sparsest sampling: one request in so
	// many.
	LeastOneIn uint32 `json:"least_one_in"`
	MostOneIn  uint32 `json:"most_one_in"`
}

// OneIn describes the sampling: 4, or 1 to 16 if it changed.
func (i *Summary) OneIn() string {
	if i.LeastOneIn == i.MostOneIn {
		return strconv.FormatUint(uint64(i.MostOneIn), 10)
	}
	return fmt.Sprintf("%d to %d", i.LeastOneIn, i.MostOneIn)
}

// Summarize reads a recording. One that was cut off is summarized as far as it goes.
func Summarize(in io.Reader) (Summary, error) {
	var info Summary
	var first, last int64
	// Timestamps, not a count of uses: a step has uses at several servers, as a request and an
	// answer.
	steps := map[string]map[int32]bool{}
	add := func(list *[]string, name string) {
		if !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	header, totals, err := Read(in, func(u *Use) error {
		// Uses come in the order in which they were observed, nearly that of time.
		if first == 0 {
			first = u.UnixNanos
		}
		last = max(last, u.UnixNanos)
		if info.LeastOneIn == 0 || u.OneIn < info.LeastOneIn {
			info.LeastOneIn = u.OneIn
		}
		info.MostOneIn = max(info.MostOneIn, u.OneIn)
		// The lists are short, so searching them is cheaper than keeping sets.
		add(&info.Jobs, u.Job)
		add(&info.Workers, u.Worker)
		add(&info.Servers, u.Server)
		if steps[u.Worker] == nil {
			steps[u.Worker] = map[int32]bool{}
		}
		steps[u.Worker][u.Timestamp] = true
		return nil
	})
	// A recording is cut off when the recorder was killed; what is there is still of use.
	if err != nil && !errors.Is(err, ErrCutOff) {
		return info, err
	}
	info.Header, info.Totals, info.Complete = header, totals, err == nil
	if info.MostOneIn == 0 { // no use was kept: as it began
		info.LeastOneIn, info.MostOneIn = max(header.SampledOneIn, 1), max(header.SampledOneIn, 1)
	}
	info.Seconds = float64(last-first) / 1e9
	for _, s := range steps {
		info.Steps = max(info.Steps, len(s))
	}
	for _, list := range []*[]string{&info.Jobs, &info.Workers, &info.Servers} {
		slices.Sort(*list)
	}
	return info, nil
}

// Print prints the summary for people.
func (i *Summary) Print(w io.Writer) error {
	state := "complete"
	if !i.Complete {
		state = "cut off"
	}
	_, err := fmt.Fprintf(w, `recorded on %s by psidecar %s, %s
%.1f seconds, %d steps, %d uses, %d keys in all, %d bytes of values, %d lists of keys
keys of one in %s requests; %d uses dropped
jobs %v
workers %v
servers %v
`, i.Host, i.Version, state, i.Seconds, i.Steps, i.Uses, i.Keys, i.Bytes, i.Lists,
		i.OneIn(), i.Dropped, i.Jobs, i.Workers, i.Servers)
	return err
}
