package life

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// damage changes a bit of one of the files of a proxy's state, or cuts the file off, while the
// proxy is down. The proxy must notice, and stop jobs rather than give them stale values.
type damage struct {
	host int
	pick uint64 // which file and where, modulo what there is
	cut  bool
}

func (e damage) kind() string { return "damage a state file" }

// String returns what is lost; which file and where is logged when it happens.
func (e damage) String() string {
	how := "a byte of"
	if e.cut {
		how = "the end of"
	}
	return fmt.Sprintf("kill -9 proxy on host%d and lose %s a state file", e.host, how)
}
func (e damage) proxy() target { return target{proxy, e.host} }

// possible requires a proxy that has written state, which it does for jobs with displaced keys.
func (e damage) possible(l *Life) error {
	if err := e.proxy().running(l); err != nil {
		return err
	}
	if files, err := filesIn(l.fleet.sidecars[e.host].state); err != nil || len(files) == 0 {
		return errors.Join(errors.New("there are no state files"), err)
	}
	return nil
}

// happen kills the proxy, damages a file and lets the next process start. Killed, since a proxy
// that ends in order may remove the file.
func (e damage) happen(ctx context.Context, l *Life) error {
	defer l.harms.begin(e.String(), harmful{breaks: true, forgets: true})()
	s := e.proxy().service(l)
	s.StayAway(true)
	defer s.StayAway(false)
	if err := s.killService(l); err != nil {
		return err
	}
	if err := e.lose(l); err != nil {
		return err
	}
	s.StayAway(false)
	return e.proxy().recover(ctx, l)
}

// lose damages a file, if there still is one with something in it.
func (e damage) lose(l *Life) error {
	dir := l.fleet.sidecars[e.host].state
	files, err := filesIn(dir)
	if err != nil || len(files) == 0 {
		return err // the job has ended, and its state with it
	}
	file := files[e.pick%uint64(len(files))]
	info, err := os.Stat(file)
	if err != nil || info.Size() == 0 {
		return nil
	}
	at := int64(e.pick>>8) % info.Size()
	name, _ := filepath.Rel(dir, file)
	if e.cut {
		l.journal.say("  %s: %d of %d bytes are left", name, at, info.Size())
		return os.Truncate(file, at)
	}
	l.journal.say("  %s: byte %d of %d changes", name, at, info.Size())
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return errors.Join(err, f.Close())
	}
	b[0] ^= 1 << (e.pick % 8)
	_, err = f.WriteAt(b[:], at)
	return errors.Join(err, f.Close())
}

// filesIn returns the regular files in a folder and below it, in order. Files that go away
// meanwhile are left out.
func filesIn(dir string) (all []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all = append(all, path)
		}
		return nil // what has gone meanwhile is not there
	})
	slices.Sort(all)
	return all, err
}

// loseStore takes the planner's store away while the planner is down.
type loseStore struct{}

func (loseStore) kind() string           { return "lose the planner's store" }
func (loseStore) String() string         { return "kill -9 planner and lose its store" }
func (loseStore) possible(l *Life) error { return target{of: planner}.running(l) }

// happen kills the planner, removes its store and lets the next process start with an empty
// one. Plans that it has made are known to the proxies alone then.
func (loseStore) happen(ctx context.Context, l *Life) error {
	defer l.harms.begin("the planner's store is lost", harmful{forgets: true})()
	s := l.fleet.planner
	s.StayAway(true)
	defer s.StayAway(false)
	if err := s.killService(l); err != nil {
		return err
	}
	files, err := filesIn(filepath.Dir(l.fleet.store))
	if err != nil {
		return err
	}
	for _, f := range files {
		// Another event's, see fill.
		if filepath.Base(f) == "filler" {
			continue
		}
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	s.StayAway(false)
	return target{of: planner}.recover(ctx, l)
}
