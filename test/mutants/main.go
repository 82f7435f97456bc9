// Command mutants shows that the tests notice faults. mutants.txt lists deliberate faults in all
// parts of the product. Each is put into a copy of the source tree, the tests that should see it
// are run there, and it is told whether they failed. The tree itself is never changed.
//
// A fault is caught if its tests fail or hang. So they must pass without it, which --without
// shows.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const list = "test/mutants/mutants.txt"

type options struct {
	only    string // numbers of faults, separated by commas; empty: all
	show    bool   // list them and run nothing
	without bool   // run the tests without the faults: all must pass
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "", "`numbers` of the faults to try, such as 3,7")
	flag.BoolVar(&o.show, "list", false, "list the faults and run nothing")
	flag.BoolVar(&o.without, "without", false, "run the tests without the faults: all must pass")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, os.Stdout, ".", o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if !ok {
		os.Exit(1)
	}
}

// run tries faults on a copy of the tree at root and prints a line each. It reports whether there
// were any and all were caught, or, with without, whether all tests pass.
func run(ctx context.Context, out io.Writer, root string, o options) (ok bool, err error) {
	text, err := os.ReadFile(filepath.Join(root, list))
	if err != nil {
		return false, fmt.Errorf("run it at the top of the source tree: %w", err)
	}
	faults, err := parse(string(text))
	if err != nil {
		return false, fmt.Errorf("%s: %w", list, err)
	}
	if o.only != "" {
		only := strings.Split(o.only, ",")
		faults = slices.DeleteFunc(faults, func(f fault) bool { return !slices.Contains(only, strconv.Itoa(f.number)) })
	}
	if o.show {
		for _, f := range faults {
			fmt.Fprintf(out, "%3d  %s\n", f.number, f)
		}
		return true, nil
	}
	temporary, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(temporary)
	dir := filepath.Join(temporary, "tree")
	if err := copyTree(dir, root); err != nil {
		return false, fmt.Errorf("copying the source tree: %w", err)
	}
	passed, failed := 0, 0
	for _, f := range faults {
		if o.without {
			f.file = ""
		}
		began := time.Now()
		is, why, err := f.try(ctx, dir)
		if err != nil {
			return false, fmt.Errorf("fault %d: %w", f.number, err)
		}
		if (is == caught) != o.without {
			passed++
		} else {
			failed++
		}
		fmt.Fprintf(out, "%3d  %-16s %6.1fs  %s (%s)\n", f.number, is, time.Since(began).Seconds(), f, why)
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, failed)
	return failed == 0 && passed > 0, nil
}

// copyTree copies the source tree. The packages of npm, and the data beside the tree without which
// tests would skip, are not copied but linked to.
func copyTree(to, from string) error {
	from, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(from, "../shared"), filepath.Join(to, "../shared")); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		switch {
		case d.IsDir() && (d.Name() == ".git" || path == filepath.Join(from, "bin")):
			return filepath.SkipDir
		case d.IsDir() && d.Name() == "node_modules":
			return cmp.Or(os.Symlink(path, target), filepath.SkipDir)
		case d.IsDir():
			return os.MkdirAll(target, 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, b, 0o755) // some are programs
	})
}
