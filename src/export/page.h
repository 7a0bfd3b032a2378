// SPDX-License-Identifier: MIT
//
// The flame graph page, made at build time from src/export/page and npm's d3-flame-graph by
// tools/web/build.mjs.
#ifndef STACKPIPE_EXPORT_PAGE_H_
#define STACKPIPE_EXPORT_PAGE_H_

#include <string_view>

namespace stackpipe {

// HTML with two placeholders: @@TITLE@@ (escaped text) and @@DATA@@ (JSON as ScriptStream makes it).
std::string_view FlamegraphPage();

}  // namespace stackpipe

#endif  // STACKPIPE_EXPORT_PAGE_H_
