package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/stream"
	"github.com/psidecar/psidecar/planner/prerun"
)

// streamFlags are the flags of `psidecar partition --stream`.
type streamFlags struct {
	on              bool
	memory, scratch string
	passes          int
}

func (s *streamFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&s.on, "stream", false, "for data beyond memory: read it several times instead of holding it")
	flags.StringVar(&s.memory, "memory", "1GiB", "with --stream: bytes (or KiB, MiB, GiB) of tables and buffers; reading and decompressing take theirs besides")
	flags.IntVar(&s.passes, "passes", stream.DefaultPasses, "with --stream: passes over the data that assign, after one that counts")
	flags.StringVar(&s.scratch, "scratch", "", "with --stream: folder on disk for what exceeds the memory; default: TMPDIR or /tmp")
}

// unused refuses flags that mean nothing without --stream.
func (s *streamFlags) unused(cmd *cobra.Command) error {
	for _, name := range []string{"memory", "passes", "scratch"} {
		if cmd.Flags().Changed(name) {
			return cli.Usagef("--%s is for --stream only", name)
		}
	}
	return nil
}

// runStream is run for --stream.
func (f *partitionFlags) runStream(cmd *cobra.Command, e env) error {
	if err := f.check(); err != nil {
		return err
	}
	for _, name := range []string{"algorithm", "all", "time-budget", "theta", "capacity", "link-speed", "planner-http", "hosts", "rules", "plot", "from", "move-at-most", "resume"} {
		if cmd.Flags().Changed(name) {
			return cli.Usagef("--%s is not for --stream, which has one algorithm and balances equal machines", name)
		}
	}
	if f.stream.scratch == "" {
		f.stream.scratch = os.TempDir()
	}
	memory, err := parseBytes(f.stream.memory)
	if err != nil {
		return cli.Usagef("--memory: %w", err)
	}
	o := stream.Options{K: f.k, Memory: memory, Passes: f.stream.passes, Scratch: f.stream.scratch}
	if err := o.Validate(); err != nil {
		return cli.Usagef("--stream: %w", err)
	}
	out := prerun.Output{Dir: f.out, K: f.k, Servers: f.servers}
	if out.KeyMap, err = dataset.ParseKeyMap(f.keyMap); err != nil {
		return cli.Usagef("--key-map: %w", err)
	}
	paths, err := prerun.Shards(f.input)
	if err != nil {
		return err
	}
	in, err := f.openInput(e)
	if err != nil {
		return err
	}
	shards := make([]prerun.Input, len(paths))
	for i, path := range paths {
		shards[i] = in
		shards[i].Path = path
	}
	defer boundGarbage(memory + readingRoom)()
	r, err := prerun.Stream(cmd.Context(), shards, o, out)
	if errors.Is(err, partition.ErrInfeasible) { // others name the file
		return fmt.Errorf("%s: %w", f.input, err)
	}
	if err != nil {
		return err
	}
	if f.json {
		if err := json.NewEncoder(e.stdout).Encode(r); err != nil {
			return fmt.Errorf("printing the report: %w", err)
		}
		return nil
	}
	if err := prerun.Table(e.stdout, []*prerun.Report{r}); err != nil {
		return err
	}
	return r.Streaming.Table(e.stdout)
}

// readingRoom is what reading takes besides the tables, in bytes, on two cores.
const readingRoom = 192 << 20

// boundGarbage has the garbage collector aim to stay below limit, in bytes, where no
// lower one holds already: by default garbage grows to as much as is in use, and a process
// whose tables take 4 GiB to 8. The limit of before holds again once restore is called.
func boundGarbage(limit int64) (restore func()) {
	before := debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(limit, before))
	return func() { debug.SetMemoryLimit(before) }
}

// parseBytes understands a whole number of bytes, KiB, MiB or GiB.
func parseBytes(text string) (int64, error) {
	number, unit := text, int64(1)
	for suffix, bytes := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			number, unit = rest, bytes
		}
	}
	var n int64
	if _, err := fmt.Sscanf(number+"\n", "%d\n", &n); err != nil || n < 0 || n > 1<<62/unit {
		return 0, fmt.Errorf("%q: want bytes as a whole number, or one with KiB, MiB or GiB", text)
	}
	return n * unit, nil
}
