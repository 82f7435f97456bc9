package identity

import (
	"io/fs"
	"syscall"
)

// inodeOf tells files apart that replace each other with equal size and time.
func inodeOf(info fs.FileInfo) any {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return nil
}
