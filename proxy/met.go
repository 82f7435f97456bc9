package proxy

import (
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The next proxy knows the hosts that have a proxy, too: it waits for one that is being
// replaced or is busy, which it would otherwise take for absent, and a connection that goes
// direct stays so. The file has an address per line. A host that has no proxy any more costs
// one wait of Options.PeerGrace.

// keepFile loads the hosts that the previous proxy has met, and keeps the file up to date
// from now on. Without a path there is no file.
func (p *peers) keepFile(path string, log *slog.Logger) {
	p.file, p.log = path, log
	if path == "" {
		return
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.complain(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range strings.Lines(string(text)) {
		// A line that is none is of no use to anybody, and does no harm.
		// A host counts as met, so the first connection to it waits for its proxy.
		if host, err := netip.ParseAddr(strings.TrimSpace(line)); err == nil {
			p.putPeer(host, peer{met: true})
		}
	}
}

// complain logs a failure to read or write the file, once.
func (p *peers) complain(err error) {
	p.told.Do(func() {
		p.log.Warn("cannot save which hosts have a proxy: a successor could bypass a busy one; check --state-dir", "error", err)
	})
}

// saveWait bounds how long a proxy that ends waits for the file.
const saveWait = time.Second

// save has the hosts that have a proxy written. It does not wait for that: connections call it, and
// the disk may stand still.
func (p *peers) save() {
	if p.file == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsaved = true
	if p.saved == nil {
		p.saved = make(chan struct{})
		go p.writeChanges(p.saved)
	}
}

// writeChanges writes the file until it has everything.
func (p *peers) writeChanges(saved chan<- struct{}) {
	defer close(saved)
	for p.takeUnsaved() {
		if err := p.writeFile(); err != nil {
			p.complain(err)
		}
	}
}

// takeUnsaved reports whether the file has to be written. If not, the caller ends.
func (p *peers) takeUnsaved() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.unsaved {
		p.saved = nil
		return false
	}
	p.unsaved = false
	return true
}

// awaitSaved waits until the file is written, at most for the given time.
func (p *peers) awaitSaved(wait time.Duration) {
	p.mu.Lock()
	saved := p.saved
	p.mu.Unlock()
	if saved == nil {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-saved:
	case <-timer.C:
	}
}

// writeFile writes the file.
func (p *peers) writeFile() error {
	p.mu.Lock()
	var all []string
	for host, h := range p.hosts {
		if h.met {
			all = append(all, host.String()+"\n")
		}
	}
	p.mu.Unlock()
	slices.Sort(all)
	if err := os.MkdirAll(filepath.Dir(p.file), 0o700); err != nil {
		return err
	}
	// While a proxy is replaced, two write the file: each has a temporary one of its own.
	f, err := os.CreateTemp(filepath.Dir(p.file), filepath.Base(p.file)+".new-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(all, ""))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), p.file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
