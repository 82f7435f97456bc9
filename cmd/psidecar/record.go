package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/recording"
	"github.com/psidecar/psidecar/internal/cli"
)

func newRecordCommand(e env) *cobra.Command {
	var (
		f         agentFlags
		out, info string
		span      time.Duration
		asJSON    bool
		force     bool
	)
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Record which keys each worker uses in each step",
		Long: `Record which keys each worker of this host's jobs pulls and pushes in each
step, at which server, and how many bytes that takes. Ends with --for, Ctrl-C or
SIGTERM. With --info, say what a recording holds instead.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case info != "" && out != "":
				return cli.Usagef("--info and --out exclude each other")
			case info != "":
				return recordInfo(e, info, asJSON)
			case out == "":
				return cli.Usagef("--out FILE or --info FILE is needed")
			}
			opts, err := f.options()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if span > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, span)
				defer cancel()
			}
			totals, err := record(ctx, opts, out, force)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(e.stdout).Encode(totals)
			}
			if totals.Uses == 0 {
				fmt.Fprintln(e.stderr, "nothing was recorded: no job of this host pushed or pulled meanwhile, or none that --cgroup, --pid and --job name (psidecar status shows what an agent sees)")
			}
			_, err = fmt.Fprintf(e.stdout, "%s: %d uses of %d keys in all, %d dropped\n", out, totals.Uses, totals.Keys, totals.Dropped)
			return err
		},
	}
	f.watching(cmd)
	cmd.Flags().StringVar(&out, "out", "", "file to write")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file that --out names")
	cmd.Flags().StringVar(&info, "info", "", "say what this recording holds")
	cmd.Flags().DurationVar(&span, "for", 0, "end after this time")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// create opens the file to write; one that is there already only by force.
func create(path string, force bool) (*os.File, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if !force {
		flags |= os.O_EXCL
	}
	file, err := os.OpenFile(path, flags, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("--out %s: the file exists; name another one, or overwrite it with --force", path)
	}
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	return file, nil
}

func record(ctx context.Context, opts agent.Options, path string, force bool) (totals recording.Totals, err error) {
	file, err := create(path, force)
	if err != nil {
		return totals, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w, err := recording.NewWriter(file, recording.Header{
		Version: version, Host: opts.Host, StartedNanos: time.Now().UnixNano(), SampledOneIn: opts.Sampling.OneIn,
	})
	if err != nil {
		return totals, err
	}
	recorder := agent.NewRecorder(opts.Jobs)
	opts.Uses = recorder.Use
	a, err := agent.New(opts)
	if err != nil {
		return totals, err
	}
	slog.Info("recording", "file", path)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched, watching := make(chan error, 1), context.WithoutCancel(ctx)
	writing, stop := context.WithCancel(watching)
	go func() {
		watched <- a.Run(ctx) // hands over what the kernel still has when it ends
		stop()
	}()
	totals, err = recorder.Run(writing, w)
	cancel() // there is nothing to watch for any more where writing has failed
	return totals, errors.Join(<-watched, err)
}

// recordingInfo is what record --info --json prints.
type recordingInfo struct {
	recording.Header
	recording.Totals
	Complete bool     `json:"complete"` // false: it was cut off, and holds what is counted here
	Seconds  float64  `json:"seconds"`  // from the first use to the last
	Jobs     []string `json:"jobs"`
	Workers  []string `json:"workers"`
	Servers  []string `json:"servers"`
	Steps    int      `json:"steps"` // different timestamps of the busiest worker
	// LeastOneIn and MostOneIn say how requests were sampled, from densest to
	// sparsest: the keys of one in so many were looked at.
	LeastOneIn uint32 `json:"least_one_in"`
	MostOneIn  uint32 `json:"most_one_in"`
}

func recordInfo(e env, path string, asJSON bool) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("--info: %w", err)
	}
	defer file.Close()
	info, err := summarize(bufio.NewReaderSize(file, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if asJSON {
		return json.NewEncoder(e.stdout).Encode(info)
	}
	state := "complete"
	if !info.Complete {
		state = "cut off"
	}
	_, err = fmt.Fprintf(e.stdout, `recorded on %s by psidecar %s, %s
%.1f seconds, %d steps, %d uses, %d keys in all, %d bytes of values, %d lists of keys
keys of one in %s requests; %d uses dropped
jobs %v
workers %v
servers %v
`, info.Host, info.Version, state, info.Seconds, info.Steps, info.Uses, info.Keys, info.Bytes, info.Lists,
		info.oneIn(), info.Dropped, info.Jobs, info.Workers, info.Servers)
	return err
}

// oneIn says how requests were sampled: 4, or 1 to 16 where that changed.
func (i *recordingInfo) oneIn() string {
	if i.LeastOneIn == i.MostOneIn {
		return strconv.FormatUint(uint64(i.MostOneIn), 10)
	}
	return fmt.Sprintf("%d to %d", i.LeastOneIn, i.MostOneIn)
}

func summarize(in io.Reader) (recordingInfo, error) {
	var info recordingInfo
	var first, last int64
	steps := map[string]map[int32]bool{}
	add := func(list *[]string, name string) {
		if !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	header, totals, err := recording.Read(in, func(u *recording.Use) error {
		if first == 0 {
			first = u.UnixNanos
		}
		last = max(last, u.UnixNanos)
		if info.LeastOneIn == 0 || u.OneIn < info.LeastOneIn {
			info.LeastOneIn = u.OneIn
		}
		info.MostOneIn = max(info.MostOneIn, u.OneIn)
		add(&info.Jobs, u.Job)
		add(&info.Workers, u.Worker)
		add(&info.Servers, u.Server)
		if steps[u.Worker] == nil {
			steps[u.Worker] = map[int32]bool{}
		}
		steps[u.Worker][u.Timestamp] = true
		return nil
	})
	if err != nil && !errors.Is(err, recording.ErrCutOff) {
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
