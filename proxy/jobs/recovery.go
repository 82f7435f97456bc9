package jobs

import (
	"crypto/sha256"
	"net/netip"
	"path/filepath"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// addressSize is the number of bytes by which a record of a scheduler has a node's address.
const addressSize = 8

// maxAddresses bounds the addresses in a record, in bytes; nodes that come back elsewhere add some.
const maxAddresses = 16384 * addressSize

// appendAddress appends a digest of a node's address. Jobs have thousands of nodes, so a record has
// digests instead of addresses; a collision merely lets a scheduler be asked about that should not
// be.
func appendAddress(dst []byte, at netip.AddrPort) []byte {
	sum := sha256.Sum256([]byte(netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()))
	return append(dst, sum[:addressSize]...)
}

// addressesOf returns the digests of all nodes of a table that have an address.
func addressesOf(t *pslite.Table) (all []byte) {
	for _, n := range t.Nodes() {
		if ip, err := netip.ParseAddr(n.Hostname); err == nil {
			all = appendAddress(all, netip.AddrPortFrom(ip, uint16(n.Port)))
		}
	}
	return all
}

// has reports whether the run has a node at an address.
func (r *schedulerRecord) has(at netip.AddrPort) bool {
	want := string(appendAddress(nil, at))
	for rest := r.Nodes; len(rest) >= addressSize; rest = rest[addressSize:] {
		if string(rest[:addressSize]) == want {
			return true
		}
	}
	return false
}

// schedulersOf returns the addresses of this host's schedulers that may have sent the node at an
// address its table. A recovery's table names neither job nor scheduler, so the destination has to
// show whose table it can be.
func (j *Jobs) schedulersOf(to netip.AddrPort, s Scope) (all []netip.AddrPort) {
	add := func(name string) {
		if at, err := netip.ParseAddrPort(name); err == nil {
			all = append(all, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
		}
	}
	j.schedulersMu.Lock()
	j.takeSchedulers()
	for k, x := range j.schedulers {
		if k.netns == s.Netns && x.record.has(to) {
			add(k.job)
		}
	}
	j.schedulersMu.Unlock()
	j.mu.RLock()
	defer j.mu.RUnlock()
	for _, x := range j.jobs {
		if _, ok := x.nodes.At(to); ok && x.near(s) {
			add(jobName(&x.nodes))
		}
	}
	return all
}

// takeSchedulers loads, once, what another proxy of this host has kept of schedulers; the caller
// holds j.schedulersMu.
func (j *Jobs) takeSchedulers() {
	if j.schedulersTaken {
		return
	}
	j.schedulersTaken = true
	files, err := pathsLike(j.opts.Dir, "*"+schedulerSuffix)
	if err != nil {
		j.log.Warn("the last runs of schedulers are unknown", "error", err)
		return
	}
	for _, file := range files {
		s := &scheduler{file: file, told: map[int32]bool{}}
		if err := s.readRecord(""); err != nil {
			j.log.Debug("ignoring the saved state of a scheduler", "error", err)
			continue
		}
		k := schedulerKey{s.record.Job, s.record.Netns}
		if j.schedulers[k] == nil && schedulerFile(k) == filepath.Base(file) {
			j.schedulers[k] = s
		}
	}
}
