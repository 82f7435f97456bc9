package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A fault is a line of the list: in file, old becomes new.
type fault struct {
	number         int // from 1
	file, old, new string
	tests          string // arguments of go test, or a command line that begins with npm
}

func (f fault) String() string {
	if f.file == "" {
		return f.tests
	}
	return fmt.Sprintf("%s: %s -> %s | %s", f.file, f.old, f.new, f.tests)
}

// parse reads a list of faults.
func parse(text string) (all []fault, err error) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		field := strings.Split(line, " | ")
		if len(field) != 4 || field[0] == "" || field[1] == "" || field[3] == "" {
			return nil, fmt.Errorf("line %d: want file | text | its replacement | tests", number)
		}
		all = append(all, fault{len(all) + 1, field[0], field[1], field[2], field[3]})
	}
	return all, nil
}

// A result is what became of a fault.
type result string

const (
	caught         result = "caught"
	survived       result = "survived"
	doesNotApply   result = "does not apply" // its text is not in the file exactly once
	doesNotCompile result = "does not compile"
)

// try applies the fault to the tree in dir, runs its tests and takes it back. A fault without a
// file changes nothing. why is the first test that failed, or what is wrong with the fault.
func (f fault) try(ctx context.Context, dir string) (is result, why string, err error) {
	path, before := filepath.Join(dir, f.file), []byte(nil)
	if f.file != "" {
		if before, err = os.ReadFile(path); err != nil {
			return doesNotApply, err.Error(), nil
		}
		if n := strings.Count(string(before), f.old); n != 1 {
			return doesNotApply, fmt.Sprintf("its text is there %d times", n), nil
		}
		if err = os.WriteFile(path, []byte(strings.Replace(string(before), f.old, f.new, 1)), 0o755); err != nil {
			return "", "", err
		}
		defer func() { err = errors.Join(err, os.WriteFile(path, before, 0o755)) }()
	}
	out, failed := f.runTests(ctx, dir)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case failed == nil:
		return survived, lastLine(out), nil
	case !errors.As(failed, &exit):
		return "", "", failed
	case notBuilt.MatchString(out):
		return doesNotCompile, firstOf(compiler, out), nil
	}
	return caught, firstOf(failure, out), nil
}

// hung is how long a command of npm's may take; go test has a timeout of its own.
const hung = 10 * time.Minute

// runTests runs the tests in dir and returns what they print.
func (f fault) runTests(ctx context.Context, dir string) (string, error) {
	args := strings.Fields(f.tests)
	if args[0] != "npm" {
		args = append([]string{"go", "test", "-timeout", "3m"}, args...)
	}
	ctx, cancel := context.WithTimeout(ctx, hung)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	// With paths trimmed, the copy and later ones share what was built.
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -trimpath", "NO_COLOR=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// What go test and vitest print.
var (
	notBuilt = regexp.MustCompile(`(?m)^FAIL\s+\S+ \[(build|setup) failed\]`)
	compiler = regexp.MustCompile(`(?m)^(?:vet: )?(\S+\.go:\d+:.*)`)
	failure  = regexp.MustCompile(`(?m)^\s*(?:--- FAIL: (\S+)|(panic: .*)|(fatal error: .*)|× (.*))`)
)

// firstOf returns the first group that is not empty of an expression's first match.
func firstOf(what *regexp.Regexp, out string) string {
	if groups := what.FindStringSubmatch(out); groups != nil {
		return cmp.Or(groups[1:]...)
	}
	return lastLine(out)
}

func lastLine(out string) string {
	out = strings.TrimSpace(out)
	return out[strings.LastIndexByte(out, '\n')+1:]
}
