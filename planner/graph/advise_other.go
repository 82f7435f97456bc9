//go:build !linux

package graph

func advise([]byte) {}
