package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// again returns the flags as the file sets them now. Flags that were set on the command line
// or in the environment keep their values: they come before the file. It parses into a flag
// set of its own, so that the flags in use do not change where the file is faulty, and
// nothing has to be undone.
func (f *RuleFlags) again() (*RuleFlags, error) {
	// A flag set of its own, in which each flag has its default until it is set below.
	fresh := &RuleFlags{}
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.String("config", f.path(), "")
	fresh.Register(set)
	text, err := os.ReadFile(f.path())
	if err != nil {
		return nil, err
	}
	var file map[string]yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", f.path(), err)
	}
	var failed error
	// The same order of precedence as at the start: command line and environment, then the
	// file, then the default.
	set.VisitAll(func(flag *pflag.Flag) {
		was := f.set.Lookup(flag.Name)
		// A value that came from the file is replaced by what the file has now; if it is gone
		// the default returns.
		_, byFile := was.Annotations[cli.FromFile]
		value, there := was.Value.String(), was.Changed && !byFile
		if node, ok := file[flag.Name]; ok && !there {
			if value, err = cli.FlagText(node); err != nil {
				failed = fmt.Errorf("%s, line %d: %s: %w", f.path(), node.Line, flag.Name, err)
			}
			there = true
		}
		if there && failed == nil && flag.Name != "config" {
			if err := set.Set(flag.Name, value); err != nil {
				failed = fmt.Errorf("%s: %s: %w", f.path(), flag.Name, err)
			}
		}
	})
	return fresh, failed
}

// Follow keeps a codec's rules as the configuration file has them, until ctx ends. Without a
// codec or a file it returns at once.
func (f *RuleFlags) Follow(ctx context.Context, codec *values.Codec) {
	if codec != nil {
		(&ruleFile{flags: f, codec: codec}).follow(ctx)
	}
}

// ruleFile keeps a codec's rules as the configuration file has them. It is for the goroutine
// of follow.
type ruleFile struct {
	flags *RuleFlags
	codec *values.Codec
}

// lookEvery is the period at which the file is checked.
const lookEvery = time.Second

// follow takes over the file's rules when it changes or SIGHUP comes, until ctx ends, and at
// first: the file may have changed since the flags were read. A faulty file is logged, and the
// rules stay.
func (r *ruleFile) follow(ctx context.Context) {
	path := r.flags.path()
	if path == "" {
		return
	}
	hup := make(chan os.Signal, 1)
	// SIGHUP reads the file even if its stamp is the same, as on file systems with coarse
	// times.
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	// The stamp is taken before reading: a change in between is seen at the next look.
	last := stampOf(path)
	r.reload()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		case <-look.C:
			if now := stampOf(path); now == last {
				continue
			}
		}
		last = stampOf(path)
		r.reload()
	}
}

// reload is read, with its error logged.
func (r *ruleFile) reload() {
	if err := r.read(); err != nil {
		slog.Error("cannot load codec rules; keeping the current ones", "config", r.flags.path(), "error", err)
	}
}

// read takes over the file's rules if they are not the codec's already. The planner's are not
// compared: with those the codec would seem to have rules that it has only until the planner
// takes its own back, or to lack some that it has.
func (r *ruleFile) read() error {
	fresh, err := r.flags.again()
	if err != nil {
		return err
	}
	rules, err := fresh.rules()
	if err != nil {
		return err
	}
	// Setting the same rules again would only make noise in the log.
	if slices.EqualFunc(rules, r.codec.LocalRules(), func(a, b values.Rule) bool { return reflect.DeepEqual(a, b) }) {
		return nil
	}
	if err := r.codec.SetRules(rules); err != nil {
		return err
	}
	slog.Info("codec rules changed", "rules", len(rules), "config", r.flags.path())
	return nil
}

// stampOf identifies a version of a file by its time and size.
func stampOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}
