package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// timeToLoss repeats DCT's headline: the recommender's time to the same loss.
func timeToLoss(ctx context.Context, e *evaluation) error {
	return e.live(ctx, "./test/codecs", "TestTimeToLoss", "time-to-loss")
}

// speed repeats Slim-DP's figure 2: steps a second by codec.
func speed(ctx context.Context, e *evaluation) error {
	return e.live(ctx, "./test/codecs", "TestTable", "table")
}

// measures adds one measure of psidecar after the other to a job on plain PS-lite, on
// links of four rates.
func measures(ctx context.Context, e *evaluation) error {
	return e.live(ctx, "./test/codecs", "TestMeasures", "measures")
}

// worthIt repeats DWW21's figure 11: a job on data that was divided, with its keys placed.
func worthIt(ctx context.Context, e *evaluation) error {
	return e.live(ctx, "./test/reroute", "TestWorthIt", "worth")
}

// live runs a test of another package, which makes hosts of its own with slow links, and copies
// the markdown that the test writes to the folder of the plots as name.md. It needs root, and
// Go beside the sources. The test's figures count even if the test fails on one of them.
func (e *evaluation) live(ctx context.Context, pkg, test, name string) error {
	switch {
	case e.quick:
		return absentError("--quick leaves out what runs on hosts of their own")
	case os.Geteuid() != 0:
		return absentError("it makes hosts with links of their own, which needs root")
	}
	dir, err := filepath.Abs(e.dir)
	if err != nil {
		return err
	}
	data, err := filepath.Abs(e.datasets)
	if err != nil {
		return err
	}
	if _, err := os.Stat(data); err != nil {
		return absentError("no data: there is no folder " + e.datasets + " (--datasets names the folder)")
	}
	file := filepath.Join(dir, name+".md")
	// Otherwise a test that writes nothing would leave an older result.
	if err := os.RemoveAll(file); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, "go", "test", "-v", "-count=1", "-timeout", "180m", "-run", "^"+test+"$", pkg)
	c.Env = append(os.Environ(), "PSIDECAR_EVAL=1", "PSIDECAR_EVAL_OUT="+dir, "PSIDECAR_DATASETS="+data)
	// An interrupt from a terminal reaches the test too, which then has time to end.
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 30 * time.Second
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	// Not returned at once: a test that fails on a figure has written the others.
	failed := c.Run()
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s of %s wrote no %s (%w): %s", test, pkg, file, failed, ending(said.String(), 10))
	}
	if _, err := e.out.Write(text); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("%s of %s: %w: %s", test, pkg, failed, ending(said.String(), 10))
	}
	return nil
}

// ending returns the last lines of a text.
func ending(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
