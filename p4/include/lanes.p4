// The lanes of a packet, each with its register.

control Lanes(inout headers_t h, in metadata_t m) {
    Lane() lane0; Lane() lane1; Lane() lane2; Lane() lane3;
    Lane() lane4; Lane() lane5; Lane() lane6; Lane() lane7;
    Lane() lane8; Lane() lane9; Lane() lane10; Lane() lane11;
    Lane() lane12; Lane() lane13; Lane() lane14; Lane() lane15;
    Lane() lane16; Lane() lane17; Lane() lane18; Lane() lane19;
    Lane() lane20; Lane() lane21; Lane() lane22; Lane() lane23;
    Lane() lane24; Lane() lane25; Lane() lane26; Lane() lane27;
    Lane() lane28; Lane() lane29; Lane() lane30; Lane() lane31;

    apply {
        lane0.apply(m, h.low.v0, h.high.v0);
        lane1.apply(m, h.low.v1, h.high.v1);
        lane2.apply(m, h.low.v2, h.high.v2);
        lane3.apply(m, h.low.v3, h.high.v3);
        lane4.apply(m, h.low.v4, h.high.v4);
        lane5.apply(m, h.low.v5, h.high.v5);
        lane6.apply(m, h.low.v6, h.high.v6);
        lane7.apply(m, h.low.v7, h.high.v7);
        lane8.apply(m, h.low.v8, h.high.v8);
        lane9.apply(m, h.low.v9, h.high.v9);
        lane10.apply(m, h.low.v10, h.high.v10);
        lane11.apply(m, h.low.v11, h.high.v11);
        lane12.apply(m, h.low.v12, h.high.v12);
        lane13.apply(m, h.low.v13, h.high.v13);
        lane14.apply(m, h.low.v14, h.high.v14);
        lane15.apply(m, h.low.v15, h.high.v15);
        lane16.apply(m, h.low.v16, h.high.v16);
        lane17.apply(m, h.low.v17, h.high.v17);
        lane18.apply(m, h.low.v18, h.high.v18);
        lane19.apply(m, h.low.v19, h.high.v19);
        lane20.apply(m, h.low.v20, h.high.v20);
        lane21.apply(m, h.low.v21, h.high.v21);
        lane22.apply(m, h.low.v22, h.high.v22);
        lane23.apply(m, h.low.v23, h.high.v23);
        lane24.apply(m, h.low.v24, h.high.v24);
        lane25.apply(m, h.low.v25, h.high.v25);
        lane26.apply(m, h.low.v26, h.high.v26);
        lane27.apply(m, h.low.v27, h.high.v27);
        lane28.apply(m, h.low.v28, h.high.v28);
        lane29.apply(m, h.low.v29, h.high.v29);
        lane30.apply(m, h.low.v30, h.high.v30);
        lane31.apply(m, h.low.v31, h.high.v31);
    }
}
