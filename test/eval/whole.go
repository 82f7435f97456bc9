package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/psidecar/psidecar/test/eval/report"
)

// guesses are how long parts take on two cores that do nothing else, with --quick and without.
var guesses = map[string][2]time.Duration{
	"degrees": {20 * time.Second, 20 * time.Second}, "machines": {20 * time.Second, 10 * time.Minute}, "bins": {20 * time.Second, 5 * time.Minute},
	"sweeps": {10 * time.Second, 2 * time.Minute}, "table5": {time.Minute, 2 * time.Minute}, "scale": {30 * time.Second, 5 * time.Minute},
	"dynamic": {20 * time.Second, time.Minute}, "threshold": {30 * time.Second, 6 * time.Minute}, "lifespan": {40 * time.Second, 8 * time.Minute},
	"slim": {2 * time.Minute, 40 * time.Minute}, "pulls": {2 * time.Minute, 20 * time.Minute}, "activations": {40 * time.Second, 10 * time.Minute},
	"activations-deep": {20 * time.Second, 5 * time.Minute}, "activations-time": {15 * time.Second, 3 * time.Minute}, "theorem": {2 * time.Second, 3 * time.Second},
	"hashed": {15 * time.Second, 3 * time.Minute}, "gradients-time": {10 * time.Second, 3 * time.Minute}, "activations-others": {15 * time.Second, 5 * time.Minute},
	"architectures": {15 * time.Second, 30 * time.Second},
	"transfer":      {15 * time.Second, 30 * time.Second},
	// Live ones are not part of --quick.
	"time": {time.Second, 15 * time.Minute}, "speed": {time.Second, 3 * time.Minute}, "measures": {time.Second, 90 * time.Minute}, "worth": {time.Second, 15 * time.Minute},
}

// mode returns how much of each part is done, for the headers of parts: results of another mode
// are run again.
func (e *evaluation) mode() string {
	switch {
	case e.quick:
		return "quick"
	case e.full:
		return "full"
	}
	return "whole"
}

// guess returns about how long a part takes.
func (e *evaluation) guess(p part) time.Duration {
	g := guesses[p.name]
	switch {
	case e.quick:
		return g[0]
	case e.full:
		return 4 * g[1]
	}
	return g[1]
}

// reported runs those of the chosen parts that have no result of this mode yet, or all of them
// with again, and writes the report of all parts. A part that fails is missing in the report,
// which says why, and is an error in the end, but does not stop the others. One that lacks data
// or rights is missing too, and is no error.
func (e *evaluation) reported(ctx context.Context, chosen []part, again bool) error {
	var todo []part
	left := time.Duration(0)
	for _, p := range chosen {
		if old, ok := report.Load(e.dir, p.name); again || !ok || !strings.HasPrefix(old.Header, e.mode()+",") {
			todo = append(todo, p)
			left += e.guess(p)
		}
	}
	failed := map[string]error{}
	without := 0
	for i, p := range todo {
		e.progress("part %d of %d, %s: some %v, some %v left in all", i+1, len(todo), p.name, e.guess(p).Round(time.Second), left.Round(time.Second))
		left -= e.guess(p)
		began := time.Now()
		err := e.save(ctx, p)
		e.progress("%s took %v", p.name, time.Since(began).Round(time.Second))
		if err != nil {
			if ctx.Err() != nil {
				// Interrupted: what was finished is kept, and the same command goes on from
				// there.
				return context.Cause(ctx)
			}
			failed[p.name] = err
			e.progress("%s: %v", p.name, err)
		}
	}
	var all []report.Part
	var errs []error
	for _, p := range parts() {
		one, _ := report.Load(e.dir, p.name)
		switch reason, err := e.absence(failed[p.name]), failed[p.name]; {
		case reason != "":
			one = report.Part{Name: p.name, Missing: reason}
			without++
		case err != nil:
			one = report.Part{Name: p.name, Missing: "it failed: " + err.Error()}
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
		}
		all = append(all, one)
	}
	if err := report.Write(e.dir, all); err != nil {
		return err
	}
	e.progress("the report: %s/index.html and index.md; %d parts were run now, of these %d failed and %d had not what they need, as the page says", e.dir, len(todo), len(errs), without)
	return errors.Join(errs...)
}

// absentError is the reason why a part cannot be run on this machine or in this mode, which is
// no failure.
type absentError string

// Error returns the reason.
func (a absentError) Error() string { return string(a) }

// absence returns the reason for an error that means that what a part needs is not there: an
// [absentError], or an absent file right in the folder of the data sets. It is empty for a
// failure.
func (e *evaluation) absence(err error) string {
	var absent absentError
	if errors.As(err, &absent) {
		return absent.Error()
	}
	var file *fs.PathError
	if errors.As(err, &file) && errors.Is(file, fs.ErrNotExist) && filepath.Dir(file.Path) == filepath.Clean(e.datasets) {
		return "no data: there is no file " + file.Path + " (--datasets names the folder)"
	}
	return ""
}

// save runs a part and keeps what it writes, which also goes to standard output. After an error
// an older result stays.
func (e *evaluation) save(ctx context.Context, p part) error {
	var text bytes.Buffer
	one := *e
	one.out = io.MultiWriter(e.out, &text)
	began := time.Now()
	if err := p.run(ctx, &one); err != nil {
		return err
	}
	host, _ := os.Hostname()
	header := fmt.Sprintf("%s, %s on %s, took %v", e.mode(), began.UTC().Format(time.DateOnly), host, time.Since(began).Round(time.Second))
	// A part that has skipped all of its data sets writes nothing.
	if text.Len() == 0 {
		return absentError("no data: the folder " + e.datasets + " has none of its files (--datasets names the folder)")
	}
	return report.Save(e.dir, p.name, header, text.String())
}
