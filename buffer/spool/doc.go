// Package spool keeps fetched entries on disk until they are applied.
package spool
